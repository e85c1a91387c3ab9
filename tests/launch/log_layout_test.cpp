#include "launch/log_layout.h"

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::InvalidArgument;
using lockstep::LogLayout;
using lockstep::WorkerLogs;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

namespace fs = std::filesystem;

namespace {

LogLayout in_log_dir(const std::string& log_dir, const std::string& run_id = "none") {
  return LogLayout({.log_dir = log_dir, .run_directory = "unused", .run_id = run_id});
}

}  // namespace

TEST(LogLayout, log_dir_gives_torchruns_layout_by_local_rank_and_restart_count) {
  const TemporaryFolder folder;
  LogLayout layout = in_log_dir(folder / "a/b");
  layout.begin_attempt({.epoch = 7, .restart_count = 2});
  const WorkerLogs logs = layout.prepare_worker({.rank = 9, .local_rank = 1});
  const std::string run = fs::relative(layout.directory(), folder.path());
  EXPECT_TRUE(std::regex_match(run, std::regex("a/b/none_[a-z0-9]{8}"))) << run;
  EXPECT_EQ(logs.stdout_log, layout.directory() + "/attempt_2/1/stdout.log");
  EXPECT_EQ(logs.stderr_log, layout.directory() + "/attempt_2/1/stderr.log");
  EXPECT_EQ(logs.error_file, layout.directory() + "/attempt_2/1/error.json");
  EXPECT_EQ(logs.filtered_stdout, layout.directory() + "/attempt_2/filtered_stdout.log");
  EXPECT_EQ(logs.filtered_stderr, layout.directory() + "/attempt_2/filtered_stderr.log");
  EXPECT_TRUE(fs::is_directory(layout.directory() + "/attempt_2/1"));
}

TEST(LogLayout, the_run_directory_is_laid_out_by_rank_and_epoch) {
  const TemporaryFolder folder;
  LogLayout layout({.log_dir = std::nullopt, .run_directory = folder / "run", .run_id = "x"});
  EXPECT_FALSE(fs::exists(folder / "run"));  // nothing is made before it is needed
  layout.begin_attempt({.epoch = 7, .restart_count = 2});
  EXPECT_EQ(layout.prepare_worker({.rank = 9, .local_rank = 1}).stdout_log,
            folder / "run/logs/attempt_7/9/stdout.log");
}

TEST(LogLayout, two_runs_share_a_log_dir_without_meeting) {
  const TemporaryFolder folder;
  EXPECT_NE(in_log_dir(folder / "logs").directory(), in_log_dir(folder / "logs").directory());
}

TEST(LogLayout, earlier_attempts_are_kept) {
  const TemporaryFolder folder;
  LogLayout layout = in_log_dir(folder / "logs");
  layout.begin_attempt({.epoch = 1, .restart_count = 0});
  const WorkerLogs first = layout.prepare_worker({});
  std::ofstream(first.stdout_log) << "first";
  layout.begin_attempt({.epoch = 2, .restart_count = 0});
  EXPECT_EQ(layout.prepare_worker({}).stdout_log, layout.directory() + "/attempt_0.2/0/stdout.log");
  layout.begin_attempt({.epoch = 3, .restart_count = 0});
  EXPECT_EQ(layout.prepare_worker({}).stdout_log, layout.directory() + "/attempt_0.3/0/stdout.log");
  EXPECT_EQ(read_text(first.stdout_log), "first");
}

TEST(LogLayout, a_replaced_workers_error_file_is_moved_aside_and_its_logs_stay) {
  const TemporaryFolder folder;
  LogLayout layout = in_log_dir(folder / "logs");
  layout.begin_attempt({});
  for (const char* name : {"one", "two"}) {
    const WorkerLogs logs = layout.prepare_worker({});
    EXPECT_FALSE(fs::exists(logs.error_file));
    std::ofstream(logs.error_file) << name;
    std::ofstream(logs.stdout_log, std::ios::app) << name;
  }
  const WorkerLogs third = layout.prepare_worker({});
  const std::string slot = fs::path(third.error_file).parent_path();
  EXPECT_FALSE(fs::exists(third.error_file));
  EXPECT_EQ(read_text(slot + "/error.1.json"), "one");
  EXPECT_EQ(read_text(slot + "/error.2.json"), "two");
  EXPECT_EQ(read_text(third.stdout_log), "onetwo");
}

TEST(LogLayout, the_null_device_disables_all_files) {
  LogLayout layout = in_log_dir("/dev/null");
  EXPECT_FALSE(layout.enabled());
  layout.begin_attempt({});
  const WorkerLogs logs = layout.prepare_worker({});
  EXPECT_EQ(logs.stdout_log + logs.error_file + logs.filtered_stdout, "");
}

TEST(LogLayout, a_plain_file_as_log_dir_is_refused_by_name) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  try {
    in_log_dir(folder / "file");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(),
              "--log-dir: '" + (folder / "file") + "' must be a folder and is something else");
  }
}

TEST(LogLayout, a_run_id_cannot_leave_the_log_dir) {
  const TemporaryFolder folder;
  const LogLayout layout = in_log_dir(folder / "logs", "../../x y\n");
  EXPECT_EQ(fs::path(layout.directory()).parent_path(), folder / "logs");
  EXPECT_TRUE(fs::path(layout.directory()).filename().string().starts_with(".._.._x_y__"));
}

TEST(LogLayout, paths_are_absolute) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  LogLayout layout = in_log_dir("logs");
  fs::current_path(before);
  EXPECT_EQ(fs::path(layout.directory()).parent_path(), folder / "logs");
}
