#include "launch/program_identity.h"

#include <stdlib.h>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class ProgramIdentityTest : public ::testing::Test {
 protected:
  ProgramIdentityTest() {
    std::string pattern = (fs::temp_directory_path() / "identityXXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ProgramIdentityTest() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  static ProgramIdentity python(const std::string& script,
                                std::vector<std::string> arguments = {}) {
    RunOptions options;
    options.script = script;
    options.script_arguments = arguments;
    return identify_program(options, {{"/usr/bin/python3", "-u", script}});
  }
  static ProgramIdentity on_path(const std::string& program, std::vector<std::string> arguments) {
    RunOptions options;
    options.script = program;
    options.no_python = true;
    options.script_arguments = arguments;
    return identify_program(options, {{"/usr/bin/" + program}});
  }

  fs::path folder_;
};

TEST_F(ProgramIdentityTest, ContentsDecideAndNotTheFolder) {
  fs::create_directory(folder_ / "other");
  const ProgramIdentity one = python(file("train.py", "print(1)\n"));
  const ProgramIdentity same = python(file("other/train.py", "print(1)\n"));
  const ProgramIdentity changed = python(file("other/train.py", "print(2)\n"));
  EXPECT_EQ(one.name, "train.py");
  EXPECT_FALSE(one.digest.empty());
  EXPECT_EQ(one, same);
  EXPECT_NE(one.digest, changed.digest);
}

TEST_F(ProgramIdentityTest, ArgumentsAreTold) {
  const std::string script = file("train.py", "print(1)\n");
  EXPECT_NE(python(script, {"--lr", "1"}).arguments, python(script, {"--lr", "2"}).arguments);
  EXPECT_NE(python(script, {"ab", "c"}).arguments, python(script, {"a", "bc"}).arguments);
}

TEST_F(ProgramIdentityTest, OfAProgramOfTheSystemTheScriptCounts) {
  const std::string script = file("train.sh", "echo\n");
  const ProgramIdentity shell = on_path("bash", {script, "more"});
  EXPECT_EQ(shell.name, "train.sh");
  EXPECT_FALSE(shell.digest.empty());
  EXPECT_EQ(on_path("sleep", {"10"}).digest, "");
  EXPECT_EQ(on_path("sleep", {"10"}).name, "sleep");
}

TEST_F(ProgramIdentityTest, WhatCannotBeReadHasNoDigest) {
  EXPECT_EQ(python((folder_ / "none.py").string()).digest, "");
  EXPECT_EQ(python("-").digest, "");
  EXPECT_EQ(python(folder_.string()).digest, "");
}

}  // namespace
}  // namespace lockstep
