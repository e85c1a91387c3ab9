// The scripts and pages that are made for other programs, read by those programs.

#include <unistd.h>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "launch/completion.h"
#include "launch/man_page.h"
#include "lockstep/error.h"

using lockstep::completion_script;
using lockstep::concat;
using lockstep::Entry;
using Words = std::set<std::string>;

namespace {

constexpr std::array<Entry, 3> kCommands{
    {{"run", "Start workers"}, {"launch", "The same"}, {"stack", "Show stacks"}}};

class ShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "shell_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  static bool has(const std::string& program) {
    return std::system(concat("command -v ", program, " >/dev/null").c_str()) == 0;
  }

  // Everything that the command line prints, errors included.
  std::string output(const std::string& command) {
    const std::string line = concat("cd ", folder_.string(), " && (", command, ") 2>&1");
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(line.c_str(), "r"), ::pclose);
    std::string text;
    for (int c; pipe != nullptr && (c = std::fgetc(pipe.get())) != EOF;) {
      text += static_cast<char>(c);
    }
    return text;
  }

  // What bash offers for the last of the words, cut as readline cuts a line.
  Words complete(const std::string& words) {
    const std::string script = put("completion", completion_script("bash", kCommands));
    const std::string text = output(concat("bash -c 'source ", script, "; COMP_WORDS=(", words,
                                           "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _lockstep; "
                                           "printf \"%s\\n\" \"${COMPREPLY[@]}\"'"));
    Words found;
    std::istringstream lines(text);
    for (std::string each; std::getline(lines, each);) {
      if (!each.empty()) {
        found.insert(each);
      }
    }
    return found;
  }

  std::filesystem::path folder_;
};

}  // namespace

TEST_F(ShellTest, bash_completes_commands_options_values_and_files) {
  put("train me.py", "");
  EXPECT_EQ(complete("lockstep \"\""), (Words{"run", "launch", "stack"}));
  EXPECT_EQ(complete("lockstep run --rdzv-e"), Words{"--rdzv-endpoint="});
  EXPECT_EQ(complete("lockstep run --no"), (Words{"--node-rank=", "--no-python"}));
  EXPECT_EQ(complete("lockstep run --use"), Words{});
  EXPECT_EQ(complete("lockstep launch --use"), Words{"--use-env"});
  EXPECT_EQ(complete("lockstep run --store = l"), Words{"local"});
  EXPECT_EQ(complete("lockstep run --store ="), (Words{"local", "shared"}));
  EXPECT_EQ(complete("lockstep run --numa-binding s"), Words{"socket"});
  EXPECT_EQ(complete("lockstep run --role t"), Words{});
  EXPECT_EQ(complete("lockstep run t"), Words{"train me.py"});
}

TEST_F(ShellTest, bash_leaves_the_scripts_own_arguments_alone) {
  put("data", "");
  EXPECT_EQ(complete("lockstep run --nnodes = 1 : 4 -r 3 train.py --rdzv-e"), Words{});
  EXPECT_EQ(complete("lockstep run --nnodes = 1 : 4 -r 3 train.py da"), Words{"data"});
  EXPECT_EQ(complete("lockstep run --nnodes = 1 : 4 -r 3 --rdzv-e"), Words{"--rdzv-endpoint="});
}

TEST_F(ShellTest, other_shells_can_read_their_scripts) {
  for (const char* shell : {"zsh", "fish"}) {
    if (has(shell)) {
      const std::string script = put(shell, completion_script(shell, kCommands));
      EXPECT_EQ(output(concat(shell, " -n ", script)), "") << shell;
    }
  }
}

TEST_F(ShellTest, groff_has_nothing_to_say_about_the_manual) {
  if (!has("groff")) {
    GTEST_SKIP() << "no groff";
  }
  const std::string page = put("page.1", lockstep::man_page("1.0"));
  EXPECT_EQ(output(concat("groff -man -Tutf8 -ww -z ", page)), "");
}
