#include "launch/secret.h"

#include <sys/stat.h>

#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/said.h"

using lockstep::Environment;
using lockstep::given_secret;
using lockstep::InvalidArgument;
using lockstep::read_secret_file;
using lockstep::testing::contains;
using lockstep::testing::TemporaryFolder;

namespace {

std::string write_file(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
  return path;
}

std::string complaint(const std::string& path) {
  try {
    read_secret_file(path);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(Secret, a_new_one_has_64_digits_and_is_never_the_same) {
  EXPECT_EQ(lockstep::make_secret().size(), 64u);
  EXPECT_NE(lockstep::make_secret(), lockstep::make_secret());
}

TEST(Secret, is_read_from_a_file_without_the_line_end) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "secret", "0123456789abcdef\r\n");
  EXPECT_EQ(read_secret_file(path), "0123456789abcdef");
}

TEST(Secret, a_file_that_others_may_read_is_refused_with_the_cure) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0640, 0604, 0620, 0777}) {
    const std::string path = write_file(folder / "secret", "0123456789abcdef", mode);
    EXPECT_TRUE(contains(complaint(path), "chmod 600 " + path)) << complaint(path);
  }
}

TEST(Secret, a_short_a_missing_and_a_wrong_file_are_refused) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "short", "0123456789abcde\n");
  EXPECT_TRUE(contains(complaint(path), "15 bytes"));
  EXPECT_FALSE(contains(complaint(path), "0123456789"));
  EXPECT_TRUE(contains(complaint(folder / "missing"), "No such file"));
  EXPECT_TRUE(contains(complaint(folder.path().string()), "not a regular file"));
  EXPECT_TRUE(contains(complaint(write_file(folder / "long", std::string(5000, 'x'))), "longer"));
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(contains(complaint(pipe), "not a regular file"));
}

TEST(Secret, the_option_counts_before_the_environment) {
  const TemporaryFolder folder;
  const std::string option = write_file(folder / "option", "secret of the option");
  const std::string file = write_file(folder / "file", "secret of the file");
  const Environment both(Environment::Variables{{"LOCKSTEP_SECRET_FILE", file},
                                                {"LOCKSTEP_SECRET", "a secret in a variable"}});
  EXPECT_EQ(given_secret(option, both), "secret of the option");
  EXPECT_EQ(given_secret(std::nullopt, both), "secret of the file");
  EXPECT_EQ(given_secret(std::nullopt, Environment(Environment::Variables{
                                           {"LOCKSTEP_SECRET", "a secret in a variable"}})),
            "a secret in a variable");
  EXPECT_EQ(given_secret(std::nullopt, Environment(Environment::Variables{})), std::nullopt);
  EXPECT_THROW(
      given_secret(std::nullopt, Environment(Environment::Variables{{"LOCKSTEP_SECRET", "short"}})),
      InvalidArgument);
}
