#include "launch/caught_signals.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"

using lockstep::catches_signal;
using lockstep::testing::TemporaryFolder;

namespace {

// A process whose threads all block the same, in a folder that looks like /proc.
void write_process(const std::filesystem::path& proc, const std::string& caught,
                   const std::string& blocked) {
  std::filesystem::create_directories(proc / "7/task/7");
  const std::string text = "Name:\tx\nSigBlk:\t" + blocked +
                           "\nSigIgn:\t0000000000000000\nSigCgt:\t" + caught + "\nCapInh:\t0\n";
  std::ofstream(proc / "7/status") << text;
  std::ofstream(proc / "7/task/7/status") << text;
}

constexpr const char* kNone = "0000000000000000";
constexpr const char* kUsr1 = "0000000000000200";

}  // namespace

TEST(CaughtSignals, a_handler_counts) {
  const TemporaryFolder folder;
  write_process(folder.path(), kUsr1, kNone);
  EXPECT_TRUE(catches_signal(7, SIGUSR1, folder.path()));
  EXPECT_FALSE(catches_signal(7, SIGUSR2, folder.path()));
}

TEST(CaughtSignals, threads_that_wait_for_it_block_it) {
  const TemporaryFolder folder;
  write_process(folder.path(), kNone, kUsr1);
  EXPECT_TRUE(catches_signal(7, SIGUSR1, folder.path()));
}

TEST(CaughtSignals, one_thread_that_does_not_block_it_would_end_the_process) {
  const TemporaryFolder folder;
  write_process(folder.path(), kNone, kUsr1);
  std::filesystem::create_directories(std::filesystem::path(folder.path()) / "7/task/8");
  std::ofstream(std::filesystem::path(folder.path()) / "7/task/8/status")
      << "SigBlk:\t" << kNone << "\n";
  EXPECT_FALSE(catches_signal(7, SIGUSR1, folder.path()));
}

TEST(CaughtSignals, nobody_catches_what_comes_to_a_process_that_is_gone) {
  const TemporaryFolder folder;
  EXPECT_FALSE(catches_signal(7, SIGUSR1, folder.path()));
}
