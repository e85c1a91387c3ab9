#include "launch/output_plan.h"

#include <string>

#include <gtest/gtest.h>

using lockstep::Environment;
using lockstep::LinePrefixValues;
using lockstep::OutputPlan;
using lockstep::OutputStream;
using lockstep::RunOptions;
using lockstep::Streams;
using lockstep::WorkerLogs;
using Kind = lockstep::OutputPlan::Kind;

namespace {

const WorkerLogs kLogs = {.stdout_log = "L/stdout.log",
                          .stderr_log = "L/stderr.log",
                          .error_file = "L/error.json",
                          .filtered_stdout = "L/filtered_stdout.log",
                          .filtered_stderr = "L/filtered_stderr.log"};

OutputPlan plan(OutputStream stream, const RunOptions& options, const WorkerLogs& logs = kLogs) {
  LinePrefixValues prefix;
  prefix.rank = 5;
  prefix.local_rank = 1;
  return plan_output(stream, options, logs, prefix, Environment(Environment::Variables{}));
}

std::string prefix_of(const OutputPlan& plan) {
  return plan.stream.prefix.text(std::chrono::system_clock::now());
}

}  // namespace

TEST(OutputPlan, by_default_stdout_is_the_agents_and_stderr_is_kept_for_the_report) {
  const RunOptions options;
  EXPECT_EQ(plan(OutputStream::out, options).kind, Kind::inherit);
  const OutputPlan error = plan(OutputStream::err, options);
  EXPECT_EQ(error.kind, Kind::pump);
  EXPECT_TRUE(error.stream.console);
  EXPECT_TRUE(error.stream.keep_tail);
  EXPECT_TRUE(error.stream.prefix.empty());
  EXPECT_EQ(error.stream.console_fd, 2);
  EXPECT_EQ(error.stream.file, "");
}

TEST(OutputPlan, a_redirected_stream_goes_to_its_file_alone) {
  RunOptions options;
  options.redirects.by_local_rank[1] = Streams::both;
  EXPECT_EQ(plan(OutputStream::out, options).kind, Kind::file);
  EXPECT_EQ(plan(OutputStream::err, options).file, "L/stderr.log");
  options.redirects.by_local_rank[1] = Streams::err;
  EXPECT_EQ(plan(OutputStream::out, options).kind, Kind::inherit);
  options.redirects.by_local_rank = {{0, Streams::both}};
  EXPECT_EQ(plan(OutputStream::out, options).kind, Kind::inherit);
}

TEST(OutputPlan, rotation_needs_the_pump) {
  RunOptions options;
  options.redirects.all = Streams::both;
  options.log_max_bytes = 1000;
  const OutputPlan out = plan(OutputStream::out, options);
  EXPECT_EQ(out.kind, Kind::pump);
  EXPECT_FALSE(out.stream.console);
  EXPECT_EQ(out.stream.max_bytes, 1000u);
}

TEST(OutputPlan, tee_goes_to_both_with_torchruns_prefix) {
  RunOptions options;
  options.tee.all = Streams::out;
  options.duplicate_stdout_filters = {"loss"};
  const OutputPlan out = plan(OutputStream::out, options);
  EXPECT_EQ(out.kind, Kind::pump);
  EXPECT_TRUE(out.stream.console);
  EXPECT_EQ(out.stream.console_fd, 1);
  EXPECT_EQ(out.stream.file, "L/stdout.log");
  EXPECT_EQ(prefix_of(out), "[default1]:");
  EXPECT_EQ(out.stream.needles, std::vector<std::string>{"loss"});
  EXPECT_EQ(out.stream.filtered_file, "L/filtered_stdout.log");
  EXPECT_TRUE(plan(OutputStream::err, options).stream.prefix.empty());
}

TEST(OutputPlan, a_prefix_of_ours_comes_before_torchruns_variable) {
  RunOptions options;
  options.tee.all = Streams::both;
  options.tee_prefix = "<${rank}>";
  EXPECT_EQ(prefix_of(plan(OutputStream::err, options)), "<5>");
  options.prefix = "${stream} ";
  EXPECT_EQ(prefix_of(plan(OutputStream::err, options)), "stderr ");
}

TEST(OutputPlan, a_prefix_of_ours_applies_without_tee) {
  RunOptions options;
  options.prefix = "${rank}: ";
  const OutputPlan out = plan(OutputStream::out, options);
  EXPECT_EQ(out.kind, Kind::pump);
  EXPECT_EQ(prefix_of(out), "5: ");
  EXPECT_EQ(out.stream.file, "");
}

TEST(OutputPlan, ranks_that_are_filtered_out_keep_their_files_and_tails) {
  RunOptions options;
  options.local_ranks_filter = {0};
  EXPECT_EQ(plan(OutputStream::out, options).kind, Kind::null);
  const OutputPlan error = plan(OutputStream::err, options);
  EXPECT_EQ(error.kind, Kind::pump);
  EXPECT_FALSE(error.stream.console);
  options.tee.all = Streams::both;
  options.duplicate_stdout_filters = {"loss"};
  const OutputPlan teed = plan(OutputStream::out, options);
  EXPECT_EQ(teed.kind, Kind::file);
  EXPECT_EQ(teed.file, "L/stdout.log");
  options.local_ranks_filter = {1};
  EXPECT_TRUE(plan(OutputStream::out, options).stream.console);
}

TEST(OutputPlan, without_log_files_output_stays_on_the_console) {
  RunOptions options;
  options.redirects.all = Streams::both;
  EXPECT_EQ(plan(OutputStream::out, options, {}).kind, Kind::inherit);
  options.tee.all = Streams::both;
  const OutputPlan out = plan(OutputStream::out, options, {});
  EXPECT_EQ(out.kind, Kind::pump);
  EXPECT_TRUE(out.stream.console);
  EXPECT_EQ(out.stream.file, "");
}

TEST(OutputPlan, with_json_events_standard_output_is_left_to_them) {
  RunOptions options;
  options.json = true;
  const OutputPlan out = plan(OutputStream::out, options);
  EXPECT_EQ(out.kind, Kind::pump);
  EXPECT_EQ(out.stream.console_fd, 2);
}
