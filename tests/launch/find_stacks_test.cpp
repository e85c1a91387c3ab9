#include "launch/find_stacks.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "core/subprocess.h"
#include "launch/descendants.h"
#include "launch/process_state.h"
#include "launch/stack_tools.h"
#include "launch/traced_thread.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/said.h"

using lockstep::behind_shells;
using lockstep::descendants_of;
using lockstep::find_stacks;
using lockstep::inspect_process;
using lockstep::NodeStacks;
using lockstep::ProcessState;
using lockstep::RankProcess;
using lockstep::StackOptions;
using lockstep::StackTools;
using lockstep::Subprocess;
using lockstep::TracedThread;
using lockstep::testing::contains;
using lockstep::testing::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

constexpr auto kPatience = 30s;  // for a busy machine; a test that needs it has failed

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

bool in_state(pid_t pid, char state) {
  const auto process = inspect_process(pid);
  return process && process->threads.front().state == state;
}

Subprocess start(const std::string& mode) {
  return Subprocess({.argv = {LOCKSTEP_STACK_HELPER, mode}});
}

// A helper that has come to where it waits: all its threads are in read().
Subprocess start_and_wait(const std::string& mode, std::size_t threads) {
  Subprocess process = start(mode);
  EXPECT_TRUE(eventually([&] {
    const auto state = inspect_process(process.pid());
    if (!state || state->threads.size() != threads) {
      return false;
    }
    for (const auto& thread : state->threads) {
      if (thread.state != 'S' || !thread.call.starts_with("read of a pipe")) {
        return false;
      }
    }
    return true;
  }));
  return process;
}

struct Result {
  int status;
  std::string text;
};

// The text that people see; status 1 where a rank's place is not known.
Result stack(const std::vector<RankProcess>& ranks, const StackOptions& options) {
  std::ostringstream out;
  const NodeStacks stacks = find_stacks(ranks, options);
  lockstep::print_stacks({stacks}, out);
  const bool all = std::ranges::all_of(stacks.ranks, &lockstep::RankStack::complete);
  return {.status = all ? 0 : 1, .text = out.str()};
}

// The kernel alone.
StackOptions without_tools() {
  return {.path = "/lockstep/no/such/folder", .by_ourselves = false};
}

StackOptions by_ourselves() {
  return {.time_limit = kPatience, .path = "/lockstep/no/such/folder"};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++number;
  }
  return number;
}

// A folder with programs that stand for the real ones.
class FakeTools {
 public:
  void add(const std::string& name, const std::string& script) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << script << "\n";
    ::chmod((folder_ / name).c_str(), 0700);
  }
  StackOptions options() const {
    return {.time_limit = kPatience, .path = folder_.path().string(), .by_ourselves = false};
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST(FindStacks, without_tools_the_kernel_answers) {
  const Subprocess process = start_and_wait("threads", 3);
  const Result result = stack({{.rank = 4, .pid = process.pid()}}, without_tools());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "rank 4 (process " + std::to_string(process.pid()) + "):\n"));
  EXPECT_TRUE(contains(result.text, "main thread and 2 others:")) << result.text;
  EXPECT_TRUE(contains(result.text, "sleeping in read of a pipe\n")) << result.text;
  EXPECT_TRUE(contains(result.text, "install gdb or elfutils")) << result.text;
  EXPECT_FALSE(contains(result.text, "py-spy")) << result.text;
}

TEST(FindStacks, ranks_that_wait_in_the_same_place_are_told_once) {
  const Subprocess first = start_and_wait("read", 1);
  const Subprocess second = start_and_wait("threads", 3);
  const Subprocess third = start_and_wait("read", 1);
  const Result result = stack({{.rank = 0, .pid = first.pid()},
                               {.rank = 1, .pid = second.pid()},
                               {.rank = 2, .pid = third.pid()}},
                              without_tools());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "ranks 0, 2 (processes " + std::to_string(first.pid()) + ", " +
                                        std::to_string(third.pid()) + "):\n"))
      << result.text;
  EXPECT_EQ(count(result.text, "sleeping in read of a pipe\n"), 2u) << result.text;
}

TEST(FindStacks, a_stopped_process_answers_and_stays_stopped) {
  Subprocess process = start_and_wait("read", 1);
  process.signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return in_state(process.pid(), 'T'); }));
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, without_tools());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "stopped by a signal")) << result.text;
  EXPECT_TRUE(in_state(process.pid(), 'T'));
}

TEST(FindStacks, a_process_that_waits_in_the_kernel_is_described_and_no_tool_touches_it) {
  FakeTools tools;
  tools.add("gdb", "touch '" + (tools / "asked") + "'");
  const Subprocess process = start("vfork");
  // Without its child it may be in that state for as long as it takes to read a page from disk.
  ASSERT_TRUE(eventually(
      [&] { return descendants_of(process.pid()).size() == 1 && in_state(process.pid(), 'D'); }));
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, tools.options());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "waiting in the kernel, where no signal reaches it"))
      << result.text;
  EXPECT_NE(::access((tools / "asked").c_str(), F_OK), 0);
}

TEST(FindStacks, gdb_shows_the_function_of_running_and_of_stopped_ranks) {
  const char* path = std::getenv("PATH");
  if (path == nullptr || !StackTools::on(path).gdb) {
    GTEST_SKIP() << "gdb is not installed";
  }
  const Subprocess first = start_and_wait("threads", 3);
  const Subprocess second = start_and_wait("threads", 3);
  Subprocess stopped = start_and_wait("read", 1);
  stopped.signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return in_state(stopped.pid(), 'T'); }));

  const Result result = stack({{.rank = 0, .pid = first.pid()},
                               {.rank = 1, .pid = second.pid()},
                               {.rank = 2, .pid = stopped.pid()}},
                              {.time_limit = 60s});
  if (contains(result.text, "not permitted")) {
    GTEST_SKIP() << "this machine lets nobody look into processes";
  }
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "ranks 0, 1 (processes ")) << result.text;
  EXPECT_TRUE(contains(result.text, "rank 2 (process ")) << result.text;
  EXPECT_TRUE(contains(result.text, "  the process is stopped by a signal\n")) << result.text;
  // The main thread and the two others of ranks 0-1, and the main thread of rank 2.
  EXPECT_EQ(count(result.text, "lockstep_test_waits_here"), 3u) << result.text;
  EXPECT_EQ(count(result.text, "lockstep_test_caller"), 2u) << result.text;
  EXPECT_EQ(count(result.text, "lockstep_test_worker"), 1u) << result.text;
  EXPECT_TRUE(contains(result.text, "  2 threads: stack_helper, stack_helper\n")) << result.text;

  // All go on as they were.
  EXPECT_TRUE(eventually([&] { return in_state(first.pid(), 'S'); }));
  EXPECT_TRUE(eventually([&] { return in_state(stopped.pid(), 'T'); }));
}

TEST(FindStacks, without_tools_functions_are_found_all_the_same) {
  const Subprocess first = start_and_wait("threads", 3);
  const Subprocess second = start_and_wait("threads", 3);
  const Result result =
      stack({{.rank = 0, .pid = first.pid()}, {.rank = 1, .pid = second.pid()}}, by_ourselves());
  if (contains(result.text, "not permitted")) {
    GTEST_SKIP() << "this machine lets nobody look into processes";
  }
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "ranks 0, 1 (processes ")) << result.text;
  EXPECT_TRUE(contains(result.text, "#1 lockstep_test_waits_here (stack_helper+0x")) << result.text;
  EXPECT_TRUE(contains(result.text, "#2 lockstep_test_caller (stack_helper+0x")) << result.text;
  EXPECT_TRUE(contains(result.text, "#3 main (stack_helper+0x")) << result.text;
  EXPECT_TRUE(contains(result.text, "  2 threads: stack_helper, stack_helper\n")) << result.text;
  EXPECT_TRUE(contains(result.text, "#2 lockstep_test_worker (stack_helper+0x")) << result.text;
  // C++ without its mangling, through the C++ library to where the thread begins in the C library.
  EXPECT_TRUE(contains(result.text, "std::thread::_Invoker<")) << result.text;
  EXPECT_TRUE(contains(result.text, "(libstdc++.so.6")) << result.text;
  EXPECT_TRUE(eventually([&] { return in_state(first.pid(), 'S'); }));
  EXPECT_EQ(inspect_process(first.pid())->tracer, 0);
}

TEST(FindStacks, a_process_that_runs_is_held_for_a_moment_and_runs_on) {
  const Subprocess process = start("loop");
  ASSERT_TRUE(eventually([&] { return in_state(process.pid(), 'R'); }));
  Result result;
  ASSERT_TRUE(eventually([&] {
    result = stack({{.rank = 0, .pid = process.pid()}}, by_ourselves());
    return contains(result.text, "lockstep_test_loops_here") || contains(result.text, "permitted");
  })) << result.text;
  if (contains(result.text, "not permitted")) {
    GTEST_SKIP() << "this machine lets nobody look into processes";
  }
  EXPECT_TRUE(contains(result.text, "#1 main (stack_helper+0x")) << result.text;
  EXPECT_TRUE(in_state(process.pid(), 'R'));
  EXPECT_EQ(inspect_process(process.pid())->tracer, 0);
}

TEST(FindStacks, a_stopped_process_shows_its_functions_and_stays_stopped) {
  Subprocess process = start_and_wait("threads", 3);
  process.signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return in_state(process.pid(), 'T'); }));
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, by_ourselves());
  if (contains(result.text, "not permitted")) {
    GTEST_SKIP() << "this machine lets nobody look into processes";
  }
  EXPECT_TRUE(contains(result.text, "stopped by a signal")) << result.text;
  EXPECT_TRUE(contains(result.text, "#2 lockstep_test_caller (stack_helper+0x")) << result.text;
  EXPECT_TRUE(eventually([&] { return in_state(process.pid(), 'T'); }));
  EXPECT_EQ(inspect_process(process.pid())->tracer, 0);
  process.signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return in_state(process.pid(), 'S'); }));
}

TEST(FindStacks, a_signal_that_comes_while_a_process_is_held_is_not_lost) {
  Subprocess process = start_and_wait("threads", 3);
  std::atomic<int> turns = 0;
  std::jthread asker([&turns, pid = process.pid()](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      stack({{.rank = 0, .pid = pid}}, by_ourselves());
      ++turns;
    }
  });
  ASSERT_TRUE(eventually([&] { return turns >= 5; }));
  process.signal(SIGTERM);
  const auto status = process.wait_for(kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->signal, SIGTERM);
}

TEST(FindStacks, a_process_that_a_debugger_holds_is_left_alone) {
  const Subprocess process = start_and_wait("read", 1);
  const TracedThread debugger(process.pid(), std::chrono::steady_clock::now() + kPatience);
  if (debugger.error() == EPERM) {
    GTEST_SKIP() << "this machine lets nobody look into processes";
  }
  ASSERT_EQ(debugger.error(), 0);
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, by_ourselves());
  EXPECT_TRUE(contains(result.text, "(process " + std::to_string(::getpid()) +
                                        " already looks into it; end that for more)\n"))
      << result.text;
}

TEST(FindStacks, python_and_native_frames_stand_side_by_side) {
  FakeTools tools;
  tools.add("py-spy",
            "echo \"asked $*\" > '" + (tools / "asked") +
                "'; echo \"Thread $3 (idle): \\\"MainThread\\\"\"; echo '    step (train.py:7)'");
  tools.add("eu-stack", "echo \"TID $2:\"; echo '#0  0x00001234 poll'");
  // A program is Python's by its name.
  std::filesystem::copy_file(LOCKSTEP_STACK_HELPER, tools / "python3");
  Subprocess process({.argv = {tools / "python3", "read"}});
  ASSERT_TRUE(eventually([&] { return in_state(process.pid(), 'S'); }));

  const Result result = stack({{.rank = 0, .pid = process.pid()}}, tools.options());
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.text, "rank 0 (process " + std::to_string(process.pid()) +
                             "):\n"
                             "  Python:\n  main thread\n    #0 step (train.py:7)\n"
                             "  native:\n  main thread\n    #0 poll\n");
}

TEST(FindStacks, a_tool_that_hangs_is_ended_and_the_rest_is_still_told) {
  FakeTools tools;
  tools.add("gdb", "trap '' TERM; sleep 1000 & echo $! > '" + (tools / "pid") + "'; wait; wait");
  const Subprocess process = start_and_wait("read", 1);
  StackOptions options = tools.options();
  options.time_limit = 300ms;
  const auto begin = std::chrono::steady_clock::now();
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience);
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "(gdb gave no answer within 300 ms)")) << result.text;
  EXPECT_TRUE(contains(result.text, "sleeping in read of a pipe\n")) << result.text;

  std::ifstream file(tools / "pid");
  pid_t left = 0;
  if (file >> left) {
    ::kill(left, SIGKILL);  // what the script left behind
  }
}

TEST(FindStacks, a_tool_that_may_not_look_says_what_helps) {
  FakeTools tools;
  tools.add("gdb", "echo 'ptrace: Operation not permitted.' >&2; exit 1");
  const Subprocess process = start_and_wait("read", 1);
  const Result result = stack({{.rank = 0, .pid = process.pid()}}, tools.options());
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(contains(result.text, "(gdb failed: ptrace: Operation not permitted.)\n"))
      << result.text;
  EXPECT_TRUE(contains(result.text, "ptrace_scope") || contains(result.text, "SYS_PTRACE"))
      << result.text;
  EXPECT_TRUE(contains(result.text, "sleeping in read of a pipe\n")) << result.text;
}

TEST(FindStacks, a_rank_that_is_gone_is_said_to_be_and_ranks_are_in_order) {
  pid_t gone = 0;
  {
    const Subprocess process = start("read");
    gone = process.pid();
  }
  const Subprocess alive = start_and_wait("read", 1);
  const Result result =
      stack({{.rank = 1, .pid = gone}, {.rank = 0, .pid = alive.pid()}}, without_tools());
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.text, "there is no such process any more")) << result.text;
  EXPECT_LT(result.text.find("rank 0 ("), result.text.find("rank 1 (")) << result.text;
}

TEST(FindStacks, a_process_that_has_ended_unnoticed_is_said_to_have) {
  // Its parent, this test, has not waited for it.
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(0);
  }
  ASSERT_TRUE(eventually([&] { return in_state(pid, 'Z'); }));
  const Result result = stack({{.rank = 0, .pid = pid}}, without_tools());
  EXPECT_EQ(result.status, 1);
  EXPECT_TRUE(contains(result.text, "has ended and its parent has not noticed")) << result.text;
  ::waitpid(pid, nullptr, 0);
}

TEST(FindStacks, behind_a_shell_the_program_is_found) {
  Subprocess shell(
      {.argv = {"sh", "-c", std::string("'") + LOCKSTEP_STACK_HELPER + "' read; true"}});
  ASSERT_TRUE(eventually([&] { return behind_shells(shell.pid()) != shell.pid(); }));
  const pid_t inner = behind_shells(shell.pid());
  ASSERT_TRUE(eventually([&] {
    const auto process = inspect_process(inner);
    return process && process->threads.front().call.starts_with("read of a pipe");
  }));
  const Result result = stack({{.rank = 0, .pid = shell.pid()}}, without_tools());
  EXPECT_TRUE(contains(result.text, "sleeping in read of a pipe\n")) << result.text;
  ::kill(inner, SIGKILL);
}
