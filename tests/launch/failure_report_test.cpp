#include "launch/failure_report.h"

#include <csignal>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/rank_list.h"
#include "lockstep/error.h"

using lockstep::Error;
using lockstep::ErrorFile;
using lockstep::ExitStatus;
using lockstep::FailureReport;
using lockstep::WorkerFailure;

namespace {

WorkerFailure killed_rank() {
  return {.rank = 3,
          .local_rank = 1,
          .host = "node1",
          .node_rank = 1,
          .pid = 4711,
          .status = {.signal = SIGKILL},
          .time = "2026-01-02T03:04:05.678+00:00",
          .error = std::nullopt,
          .stderr_tail = {"loading data", "\033[31mstep 17\033[0m"},
          .log_path = "run/logs/attempt_1/3/stderr.log",
          .epoch = 2,
          .restart_count = 1};
}

WorkerFailure raised(int rank) {
  WorkerFailure failure = killed_rank();
  failure.rank = rank;
  failure.status = {.exit_code = 1};
  failure.error = ErrorFile{.path = "error.json",
                            .message = "ValueError: bad batch\nsecond line",
                            .callstack =
                                "Traceback (most recent call last):\n  File \"a.py\"\n"
                                "ValueError: bad batch",
                            .timestamp = 1700000000,
                            .error_code = std::nullopt,
                            .json = "{\"message\": {\"message\": \"ValueError: bad batch\"}}",
                            .malformed = ""};
  return failure;
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) longest = std::max(longest, line.size());
  return longest;
}

}  // namespace

TEST(FailureReport, reads_from_the_first_failure_to_what_was_stopped) {
  WorkerFailure second = raised(0);
  second.host = "node0";
  const FailureReport report = {.program = "train.py",
                                .reason = "no restarts left (--max-restarts 1)",
                                .first = killed_rank(),
                                .others = {second},
                                .stopped_ranks = {7, 1, 2, 5, 6}};
  EXPECT_EQ(to_text(report), R"(lockstep: train.py failed: no restarts left (--max-restarts 1)

First failure: rank 3 on node1: signal 9 (SIGKILL)
  worker  local rank 1 of node 1, pid 4711, after restart 1
  time    2026-01-02T03:04:05.678+00:00
  log     run/logs/attempt_1/3/stderr.log
  The last 2 lines of its standard error:
    | loading data
    | step 17
  Hint: Something outside the job killed it. Often that is the kernel, when memory runs
        out: look for its pid in `dmesg -T | grep -i 'killed process'` or `journalctl -k`,
        and in a container or a batch job at the memory limit.

Failed after it:
  rank 0 on node0: exit code 1: ValueError: bad batch

Stopped by the launcher because of this: ranks 1, 2, 5-7
)");
}

TEST(FailureReport, an_exception_shows_its_message_and_call_stack) {
  const FailureReport report = {
      .program = "", .reason = "", .first = raised(3), .others = {}, .stopped_ranks = {0}};
  EXPECT_EQ(to_text(report), R"(lockstep: the job failed

First failure: rank 3 on node1: exit code 1
  worker  local rank 1 of node 1, pid 4711, after restart 1
  time    2026-01-02T03:04:05.678+00:00
  log     run/logs/attempt_1/3/stderr.log
  error   ValueError: bad batch
          second line
  Its call stack:
    | Traceback (most recent call last):
    |   File "a.py"
    | ValueError: bad batch
  The last 2 lines of its standard error:
    | loading data
    | step 17

Stopped by the launcher because of this: rank 0
)");
}

TEST(FailureReport, a_call_stack_that_standard_error_shows_is_not_shown_twice) {
  WorkerFailure failure = raised(3);
  failure.stderr_tail = {"Traceback (most recent call last):", "  File \"a.py\"",
                         "ValueError: bad batch"};
  FailureReport report;
  report.first = failure;
  const std::string text = to_text(report);
  EXPECT_EQ(text.find("Its call stack"), std::string::npos);
  EXPECT_NE(text.find("    |   File \"a.py\"\n"), std::string::npos);
}

TEST(FailureReport, long_call_stacks_keep_the_innermost_calls) {
  WorkerFailure failure = raised(3);
  failure.error->callstack = "Traceback (most recent call last):\n";
  for (int i = 0; i < 50; ++i) failure.error->callstack += "python " + std::to_string(i) + "\n";
  FailureReport report;
  report.first = failure;
  EXPECT_NE(to_text(report).find("python 49\n"), std::string::npos);
  EXPECT_EQ(to_text(report).find("python 1\n"), std::string::npos);

  report.first->error->callstack = "C++ backtrace (most recent call first):\n";
  for (int i = 0; i < 50; ++i) report.first->error->callstack += "c++ " + std::to_string(i) + "\n";
  EXPECT_NE(to_text(report).find("c++ 0\n"), std::string::npos);
  EXPECT_EQ(to_text(report).find("c++ 49\n"), std::string::npos);
}

TEST(FailureReport, only_the_last_twenty_lines_of_standard_error_are_shown) {
  FailureReport report;
  report.first = killed_rank();
  report.first->stderr_tail.clear();
  for (int i = 0; i < 30; ++i) report.first->stderr_tail.push_back("line " + std::to_string(i));
  const std::string text = to_text(report);
  EXPECT_NE(text.find("The last 20 lines"), std::string::npos);
  EXPECT_EQ(text.find("| line 9\n"), std::string::npos);
  EXPECT_NE(text.find("| line 10\n"), std::string::npos);
  EXPECT_NE(text.find("| line 29\n"), std::string::npos);
}

TEST(FailureReport, a_worker_that_said_nothing_gets_advice) {
  FailureReport report;
  report.first = killed_rank();
  report.first->status = {.exit_code = 1};
  report.first->stderr_tail.clear();
  const std::string text = to_text(report);
  EXPECT_NE(text.find("It wrote nothing to its standard error."), std::string::npos);
  EXPECT_NE(text.find("lockstep::record"), std::string::npos);
}

TEST(FailureReport, a_malformed_error_file_is_named_and_does_no_harm) {
  FailureReport report;
  report.first = killed_rank();
  report.first->error = ErrorFile{};
  report.first->error->path = "x/error.json";
  report.first->error->malformed = "it is empty";
  EXPECT_NE(to_text(report).find("error   its error file 'x/error.json' says nothing: it is empty"),
            std::string::npos);
}

TEST(FailureReport, a_lost_node_needs_no_failed_worker) {
  FailureReport report;
  report.reason = "node 2 (node2) was lost";
  report.stopped_ranks = {0, 1, 2, 3};
  EXPECT_EQ(to_text(report),
            "lockstep: the job failed: node 2 (node2) was lost\n\n"
            "Stopped by the launcher because of this: ranks 0-3\n");
}

TEST(FailureReport, a_thousand_failures_are_listed_briefly) {
  FailureReport report;
  report.first = killed_rank();
  for (int rank = 10; rank < 1010; ++rank) report.others.push_back(raised(rank));
  const std::string text = to_text(report);
  EXPECT_NE(text.find("and 984 more: ranks 26-1009"), std::string::npos);
  EXPECT_LE(longest_line(text), 90u);
}

TEST(FailureReport, colours_stand_only_where_asked_and_never_come_from_a_worker) {
  FailureReport report;
  report.first = killed_rank();
  report.first->stderr_tail = {"\033[2J\033]0;title\a 10%\r 99%\x07"};
  EXPECT_EQ(to_text(report).find('\033'), std::string::npos);
  EXPECT_NE(to_text(report).find("    |  99%\n"), std::string::npos);
  const std::string coloured = to_text(report, {.colour = true});
  EXPECT_NE(coloured.find("\033[1;31mFirst failure"), std::string::npos);
  EXPECT_EQ(coloured.find("\033[2J"), std::string::npos);
}

TEST(FailureReport, ranks_are_listed_in_order_and_once) {
  EXPECT_EQ(lockstep::rank_numbers({}), "");
  EXPECT_EQ(lockstep::rank_numbers({4}), "4");
  EXPECT_EQ(lockstep::rank_numbers({5, 4, 4}), "4, 5");
  EXPECT_EQ(lockstep::rank_numbers({6, 5, 4, 1, 9}), "1, 4-6, 9");
}

TEST(FailureReport, hints_know_signals_and_the_codes_that_shells_make_of_them) {
  EXPECT_NE(lockstep::hint_for({.signal = SIGBUS}).find("/dev/shm"), std::string::npos);
  EXPECT_NE(lockstep::hint_for({.exit_code = 137}).find("SIGKILL"), std::string::npos);
  EXPECT_NE(lockstep::hint_for({.exit_code = 127}).find("not found"), std::string::npos);
  EXPECT_EQ(lockstep::hint_for({.exit_code = 1}), "");
  EXPECT_EQ(lockstep::hint_for({.exit_code = 255}), "");
}

TEST(FailureReport, the_exit_code_is_the_workers_or_that_of_its_signal) {
  EXPECT_EQ(lockstep::exit_code_for({.exit_code = 75}), 75);
  EXPECT_EQ(lockstep::exit_code_for({.signal = SIGTERM}), 143);
}

TEST(FailureReport, json_and_back_is_the_same) {
  EXPECT_EQ(lockstep::worker_failure_from_json(to_json(raised(5))), raised(5));
  const FailureReport report = {.program = "train.py",
                                .reason = "why",
                                .first = killed_rank(),
                                .others = {raised(1), raised(2)},
                                .stopped_ranks = {0}};
  const FailureReport back = lockstep::failure_report_from_json(to_json(report));
  EXPECT_EQ(to_text(back), to_text(report));
  EXPECT_EQ(back.first, report.first);
  EXPECT_EQ(back.stopped_ranks, report.stopped_ranks);
  EXPECT_EQ(back.others.size(), 2u);
  FailureReport without_worker;
  EXPECT_EQ(lockstep::failure_report_from_json(to_json(without_worker)), without_worker);
}

TEST(FailureReport, what_a_worker_wrote_cannot_break_the_json) {
  WorkerFailure failure = killed_rank();
  failure.stderr_tail = {"\xff\xfe not UTF-8", std::string(1 << 20, 'x'), std::string("\0\n", 2)};
  const WorkerFailure back = lockstep::worker_failure_from_json(to_json(failure));
  ASSERT_EQ(back.stderr_tail.size(), 3u);
  EXPECT_LE(back.stderr_tail[1].size(), 2u << 10);
  EXPECT_EQ(back.stderr_tail[2], failure.stderr_tail[2]);
}

TEST(FailureReport, json_that_is_no_failure_is_refused) {
  const std::string good = to_json(raised(5));
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(lockstep::worker_failure_from_json(good.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(lockstep::worker_failure_from_json("[]"), Error);
  EXPECT_THROW(lockstep::worker_failure_from_json("{}"), Error);
  EXPECT_THROW(lockstep::failure_report_from_json("{}"), Error);
  // Each field, replaced by something of another kind.
  const auto json = nlohmann::json::parse(good);
  for (const auto& item : json.items()) {
    auto broken = json;
    broken[item.key()] = {{"x", 1}};
    if (item.key() == "epoch") continue;  // absent is 0
    EXPECT_THROW(lockstep::worker_failure_from_json(broken.dump()), Error) << item.key();
    broken[item.key()] = 1e300;
    EXPECT_THROW(lockstep::worker_failure_from_json(broken.dump()), Error) << item.key();
  }
}

TEST(FailureReport, the_parents_error_file_is_made_up_when_the_worker_left_none) {
  const auto json = nlohmann::json::parse(error_file_for_parent(killed_rank()));
  EXPECT_EQ(json["message"]["message"], "rank 3 on node1: signal 9 (SIGKILL)");
  EXPECT_EQ(json["message"]["errorCode"], -9);
  EXPECT_EQ(nlohmann::json::parse(error_file_for_parent(raised(1)))["message"]["errorCode"], 1);
}
