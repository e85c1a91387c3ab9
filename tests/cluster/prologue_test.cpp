#include "cluster/prologue.h"

#include <sys/types.h>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::after_prologue;
using lockstep::Environment;
using lockstep::SystemError;

namespace {

const Environment kBefore({{"PATH", "/usr/bin:/bin"}, {"KEPT", "a\nb"}, {"PWD", "/"}});

std::string failure_of(const std::string& lines) {
  try {
    after_prologue(lines, kBefore);
  } catch (const SystemError& error) {
    return error.what();
  }
  return "nothing failed";
}

}  // namespace

TEST(Prologue, its_environment_is_what_workers_get) {
  const Environment after =
      after_prologue("export NEW='x y'; PATH=/opt/bin:$PATH\nunset KEPT; cd /tmp", kBefore);
  EXPECT_EQ(after.get("NEW"), "x y");
  EXPECT_EQ(after.get("PATH"), "/opt/bin:/usr/bin:/bin");
  EXPECT_FALSE(after.has("KEPT"));
  EXPECT_EQ(after.get("PWD"), "/");
  EXPECT_FALSE(after.has("SHLVL"));
}

TEST(Prologue, values_with_newlines_survive) {
  EXPECT_EQ(after_prologue("true", kBefore).get("KEPT"), "a\nb");
}

TEST(Prologue, the_command_that_fails_is_named) {
  const std::string text = failure_of("export A=1\nls /does/not/exist 2>/dev/null\nexport B=1");
  EXPECT_NE(text.find("ls /does/not/exist"), std::string::npos) << text;
  EXPECT_NE(text.find("exit code"), std::string::npos) << text;
  EXPECT_NE(failure_of("exit 0").find("leave 'exit' out"), std::string::npos);
  EXPECT_NE(failure_of("exit 3").find("exit code 3"), std::string::npos);
}

TEST(Prologue, what_it_leaves_in_the_background_is_not_awaited) {
  const auto after = after_prologue("sleep 600 & export LEFT=$!", kBefore);
  const pid_t left = std::stoi(after.get("LEFT").value());
  EXPECT_EQ(::kill(left, 0), 0) << "it was waited for";
  ::kill(left, SIGKILL);  // it has this test's standard error, for whose end ctest would wait
}
