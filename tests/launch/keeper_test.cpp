#include "launch/keeper.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/parse_integer.h"
#include "launch/descendants.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/launch/keeper_support.h"

using namespace lockstep;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// A worker that waits to be killed; with a grandchild of another session whose parent has ended,
// and a child of its own session. Prints their pids and that it is ready.
constexpr const char* kFamily =
    "trap '' TERM; "
    "(setsid sh -c 'trap \"\" TERM HUP INT; echo $$; exec sleep 600' &) ; "
    "sh -c 'echo $$; exec sleep 600' & "
    "echo ready; "
    "while :; do sleep 600; done";

// The pids that kFamily prints, in no certain order.
std::vector<Watched> read_family(LinePipe& pipe) {
  std::vector<Watched> family;
  bool ready = false;
  while (family.size() < 2 || !ready) {
    const std::string line = pipe.line();
    if (line == "ready") {
      ready = true;
    } else if (const auto pid = parse_integer<pid_t>(line)) {
      family.emplace_back(*pid);
    } else {
      ADD_FAILURE() << "'" << line << "'";
      break;
    }
  }
  return family;
}

void expect_all_end(const std::vector<Watched>& processes, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (const Watched& process : processes) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    EXPECT_TRUE(process.ended_within(std::max(left, 0ms))) << process.pid();
  }
}

// Changes what SIGHUP does in this process, for a while.
class HangupIs {
 public:
  explicit HangupIs(void (*handler)(int)) {
    struct sigaction action = {};
    action.sa_handler = handler;
    ::sigaction(SIGHUP, &action, &before_);
  }
  ~HangupIs() { ::sigaction(SIGHUP, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

// A set of signals from a worker's /proc/self/status. Only those up to 31: the two above are the C
// library's own, and some programs that run tests have them ignored.
std::uint64_t signals_in(TestKeeper& test, const std::string& line) {
  const std::string text =
      test.output_of(TestKeeper::shell("grep " + line + " /proc/self/status | cut -f2"));
  return std::stoull(text, nullptr, 16) & 0x7fffffff;
}

}  // namespace

TEST(Keeper, exit_codes_and_signals_arrive) {
  TestKeeper test;
  const pid_t first = test.start(1, TestKeeper::shell("exit 7"));
  const auto code = test.next<WorkerExited>();
  EXPECT_EQ(code.id, 1u);
  EXPECT_EQ(code.pid, first);
  EXPECT_EQ(code.status, (ExitStatus{.exit_code = 7}));
  EXPECT_GT(code.monotonic_ns, 0);

  test.start(2, TestKeeper::shell("kill -SEGV $$"));
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.signal = SIGSEGV}));
}

TEST(Keeper, ends_are_told_in_the_order_in_which_they_happened) {
  TestKeeper test;
  constexpr int kWorkers = 20;
  for (int id = 0; id < kWorkers; ++id) {
    test.start(id, TestKeeper::shell("exec sleep 600"));
  }
  // While the keeper is stopped it cannot see one end before the next.
  ASSERT_EQ(::kill(test.keeper.pid(), SIGSTOP), 0);
  std::vector<ProcessInfo> workers = descendants_of(test.keeper.pid());
  ASSERT_EQ(workers.size(), static_cast<std::size_t>(kWorkers));
  std::vector<pid_t> order;
  for (std::size_t index = workers.size(); index-- > 0;) {
    const Watched worker(workers[index].pid);
    ASSERT_EQ(::kill(worker.pid(), SIGKILL), 0);
    ASSERT_TRUE(worker.ended_within(kPatience));
    order.push_back(worker.pid());
  }
  ASSERT_EQ(::kill(test.keeper.pid(), SIGCONT), 0);
  std::int64_t last = 0;
  for (const pid_t pid : order) {
    const auto exited = test.next<WorkerExited>();
    EXPECT_EQ(exited.pid, pid);
    EXPECT_GT(exited.monotonic_ns, last);
    last = exited.monotonic_ns;
  }
}

TEST(Keeper, commands_to_a_keeper_that_stands_still_wait_and_their_sender_does_not) {
  TestKeeper test;
  ASSERT_EQ(::kill(test.keeper.pid(), SIGSTOP), 0);
  const auto before = std::chrono::steady_clock::now();
  while (!test.keeper.has_pending()) test.keeper.signal(99, SIGUSR1);  // nobody has this number
  const TemporaryFolder folder;
  WorkerSpec spec = TestKeeper::shell("echo hello");
  {
    // Closed before the keeper has taken it.
    const UniqueFd out(
        ::open((folder / "out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR));
    spec.stdout_fd = out.get();
    test.keeper.start(2, spec);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, Keeper::kPatience);
  ASSERT_EQ(::kill(test.keeper.pid(), SIGCONT), 0);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (test.keeper.has_pending() && std::chrono::steady_clock::now() < deadline) {
    test.keeper.flush();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(test.next<WorkerStarted>().id, 2u);
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.exit_code = 0}));
  std::ifstream file(folder / "out");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "hello");
}

TEST(Keeper, a_worker_gets_exactly_its_environment_its_folder_and_its_cpus) {
  TestKeeper test;
  const TemporaryFolder folder;
  WorkerSpec spec = TestKeeper::shell("echo \"$A\"; pwd -P; taskset -cp $$ | sed 's/.*: //'; env");
  spec.environment["A"] = "two words";
  spec.working_directory = folder.path();
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    last = CPU_ISSET(cpu, &allowed) ? cpu : last;
  }
  spec.cpus = {last};
  ::setenv("LOCKSTEP_TEST_NOT_INHERITED", "1", 1);
  const std::string output = test.output_of(spec);
  ::unsetenv("LOCKSTEP_TEST_NOT_INHERITED");
  EXPECT_EQ(output.find("NOT_INHERITED"), std::string::npos);
  EXPECT_EQ(output.substr(0, output.find("PATH=")).substr(0, 10), "two words\n");
  const std::string real = std::filesystem::canonical(folder.path());
  EXPECT_NE(output.find("\n" + real + "\n" + std::to_string(last) + "\n"), std::string::npos)
      << output;
}

TEST(Keeper, a_worker_leads_a_session_of_its_own) {
  TestKeeper test;
  EXPECT_EQ(test.output_of(TestKeeper::shell(
                "ps -o pid=,pgid=,sid= -p $$ | tr -s ' ' '\\n' | sort -u | grep -c .")),
            "1\n");
}

TEST(Keeper, no_signal_is_blocked_or_ignored_in_workers) {
  const HangupIs handled(SIG_DFL);  // whoever runs the tests may have it ignored
  TestKeeper test;
  EXPECT_EQ(signals_in(test, "SigBlk"), 0u);
  EXPECT_EQ(signals_in(test, "SigIgn"), 0u);
}

TEST(Keeper, an_ignored_hangup_stays_ignored_in_workers) {
  std::optional<TestKeeper> test;
  {
    const HangupIs ignored(SIG_IGN);
    test.emplace();
  }
  EXPECT_EQ(signals_in(*test, "SigIgn"), 1u);
}

TEST(Keeper, no_descriptor_leaks_into_a_worker) {
  const UniqueFd inheritable(::open("/dev/null", O_RDONLY));  // no O_CLOEXEC, on purpose
  ASSERT_TRUE(inheritable);
  TestKeeper test;
  WorkerSpec spec = TestKeeper::shell("");
  spec.argv = {"ls", "/proc/self/fd"};  // 3 is the folder that it lists
  spec.stderr_fd = inheritable.get();
  EXPECT_EQ(test.output_of(spec), "0\n1\n2\n3\n");
}

TEST(Keeper, output_goes_to_files_that_the_keeper_opens) {
  const TemporaryFolder folder;
  std::ofstream(folder / "both") << "old";
  TestKeeper test;
  WorkerSpec spec = TestKeeper::shell("echo out; echo err >&2");
  spec.stdout_path = spec.stderr_path = folder / "both";
  test.start(1, spec);
  test.next<WorkerExited>();
  EXPECT_EQ(read_text(folder / "both"), "out\nerr\n");
}

TEST(Keeper, what_cannot_be_started_is_named) {
  const TemporaryFolder folder;
  std::ofstream(folder / "data") << "text";
  TestKeeper test;
  const auto failure = [&](std::vector<std::string> argv, WorkerSpec spec = {}) {
    spec.argv = std::move(argv);
    test.keeper.start(3, spec);
    return test.next<WorkerStartFailed>();
  };
  EXPECT_EQ(failure({"/nowhere/tool"}).reason,
            "cannot start '/nowhere/tool': No such file or directory");
  EXPECT_EQ(failure({"/nowhere/tool"}).error, ENOENT);
  EXPECT_EQ(
      failure({folder / "data"}).reason,
      "cannot start '" + (folder / "data") + "': Permission denied (the file is not executable)");
  WorkerSpec on_path;
  on_path.environment["PATH"] = folder.path();
  EXPECT_EQ(failure({"tool"}, on_path).reason,
            "cannot start 'tool': no such program on PATH '" + folder.path().string() + "'");
  WorkerSpec in_folder;
  in_folder.working_directory = "/nowhere";
  EXPECT_EQ(failure({"/bin/true"}, in_folder).reason,
            "cannot start '/bin/true' in folder '/nowhere': No such file or directory");
  WorkerSpec with_output;
  with_output.stdout_path = "/nowhere/out";
  EXPECT_EQ(failure({"/bin/true"}, with_output).reason,
            "cannot open '/nowhere/out' for a program's output: No such file or directory");
  WorkerSpec on_cpus;
  on_cpus.cpus = {60000};
  EXPECT_EQ(failure({"/bin/true"}, on_cpus).error, EINVAL);
  EXPECT_EQ(failure({""}).error, 0);

  test.start(3, TestKeeper::shell("exit 0"));  // the id is free again
  EXPECT_TRUE(test.next<WorkerExited>().status.success());
}

TEST(Keeper, an_environment_of_many_hundred_kilobytes_arrives) {
  TestKeeper test;
  WorkerSpec spec = TestKeeper::shell("env | wc -c");
  for (int index = 0; index < 10; ++index) {
    spec.environment["LARGE_" + std::to_string(index)] = std::string(50'000, 'x');
  }
  EXPECT_GT(parse_integer<int>(first_line(test.output_of(spec))).value_or(0), 500'000);
}

TEST(Keeper, a_signal_reaches_the_whole_process_group) {
  TestKeeper test;
  LinePipe pipe;
  WorkerSpec spec = TestKeeper::shell("sh -c 'echo $$; exec sleep 600' & wait");
  spec.stdout_fd = pipe.write_end();
  test.start(1, spec);
  const Watched child(parse_integer<pid_t>(pipe.line()).value());
  test.keeper.signal(1, SIGTERM);
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.signal = SIGTERM}));
  EXPECT_TRUE(child.ended_within(kPatience));
  test.keeper.signal(1, SIGTERM);  // it has ended: nothing happens
  test.keeper.signal(99, SIGTERM);
  test.start(2, TestKeeper::shell("exit 0"));
  EXPECT_TRUE(test.next<WorkerExited>().status.success());
}

TEST(Keeper, a_worker_may_ignore_a_signal_but_not_being_killed) {
  TestKeeper test;
  LinePipe pipe;
  WorkerSpec spec = TestKeeper::shell(
      "trap 'echo term' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done");
  spec.stdout_fd = pipe.write_end();
  test.start(1, spec);
  EXPECT_EQ(pipe.line(), "ready");
  test.keeper.signal(1, SIGTERM);
  // The shell's sleep dies of it, being in the group, and the shell goes on.
  EXPECT_EQ(pipe.line(), "term");
  test.keeper.signal(1, SIGKILL);
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.signal = SIGKILL}));
}

TEST(Keeper, leftovers_in_other_sessions_are_killed_and_starts_wait_for_that) {
  TestKeeper test;
  LinePipe pipe;
  WorkerSpec spec = TestKeeper::shell(kFamily);
  spec.stdout_fd = pipe.write_end();
  test.start(1, spec);
  const std::vector<Watched> family = read_family(pipe);
  test.keeper.signal(1, SIGKILL);
  test.next<WorkerExited>();
  EXPECT_TRUE(std::any_of(family.begin(), family.end(), [](const Watched& process) {
    return process.alive();
  })) << "the test should leave something behind";

  test.keeper.kill_leftovers(5);
  test.keeper.start(2, TestKeeper::shell("exit 4"));
  EXPECT_EQ(test.next<AllGone>().request, 5u);
  expect_all_end(family, 0ms);
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.exit_code = 4}));
  test.keeper.kill_leftovers(6);
  EXPECT_EQ(test.next<AllGone>().request, 6u);
  EXPECT_TRUE(descendants_of(test.keeper.pid()).empty());
}

TEST(Keeper, processes_that_keep_replacing_themselves_are_caught) {
  TestKeeper test;
  LinePipe pipe;
  // Each generation starts the next and ends.
  WorkerSpec spec = TestKeeper::shell("echo $$; f() { (f &) ; exit; }; f");
  spec.stdout_fd = pipe.write_end();
  test.start(1, spec);
  pipe.line();
  test.next<WorkerExited>();
  test.keeper.kill_leftovers(1);
  test.next<AllGone>();
  EXPECT_TRUE(descendants_of(test.keeper.pid()).empty());
}

TEST(Keeper, a_process_that_does_not_go_is_named) {
  TestKeeper test({.stuck_after = 50ms});
  WorkerSpec spec = TestKeeper::shell("");
  spec.argv = {"sleep", "600"};
  const pid_t pid = test.start(1, spec);
  // A tracer holds the remains of its tracee back until it has waited for them itself.
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  const Watched process(pid);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_TRUE(process.ended_within(kPatience));
  test.keeper.kill_leftovers(1);
  const auto stuck = test.next<StuckProcesses>();
  ASSERT_EQ(stuck.processes.size(), 1u);
  EXPECT_EQ(stuck.request, 1u);
  EXPECT_EQ(stuck.processes[0].pid, pid);
  EXPECT_NE(stuck.processes[0].description.find("(sleep), ended, but"), std::string::npos)
      << stuck.processes[0].description;
  ASSERT_EQ(::waitpid(pid, nullptr, __WALL), pid);
  EXPECT_EQ(test.next<WorkerExited>().status, (ExitStatus{.signal = SIGKILL}));
  EXPECT_EQ(test.next<AllGone>().request, 1u);
}

TEST(Keeper, two_hundred_workers_start_and_end) {
  TestKeeper test;
  const UniqueFd sink(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  constexpr int kWorkers = 200;
  for (int id = 0; id < kWorkers; ++id) {
    WorkerSpec spec = TestKeeper::shell("exit " + std::to_string(id % 100));
    spec.stdout_fd = spec.stderr_fd = sink.get();
    spec.environment["LARGE"] = std::string(20'000, 'x');
    test.keeper.start(id, spec);
  }
  std::set<std::uint64_t> seen;
  for (int count = 0; count < kWorkers; ++count) {
    const auto exited = test.next<WorkerExited>();
    EXPECT_EQ(exited.status.exit_code, static_cast<int>(exited.id % 100));
    seen.insert(exited.id);
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kWorkers));
}

TEST(Keeper, its_end_kills_everything_and_leaves_no_child) {
  const std::size_t before = descendants_of(::getpid()).size();
  std::vector<Watched> processes;
  {
    TestKeeper test;
    LinePipe pipe;
    WorkerSpec spec = TestKeeper::shell(kFamily);
    spec.stdout_fd = pipe.write_end();
    processes.emplace_back(test.start(1, spec));
    for (Watched& member : read_family(pipe)) {
      processes.push_back(std::move(member));
    }
  }
  expect_all_end(processes, 0ms);
  EXPECT_EQ(descendants_of(::getpid()).size(), before);
}

TEST(Keeper, nothing_outlives_a_launcher_that_is_killed) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // the keeper will be an orphan
  LinePipe pipe;
  const pid_t launcher = ::fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    TestKeeper test;
    WorkerSpec spec = TestKeeper::shell(kFamily);
    spec.stdout_fd = pipe.write_end();
    for (int id = 0; id < 3; ++id) {
      const std::string line = std::to_string(test.start(id, spec)) + "\n";
      if (::write(pipe.write_end(), line.data(), line.size()) < 0) {
        ::_exit(1);
      }
    }
    ::pause();
    ::_exit(1);
  }
  std::vector<Watched> processes;
  for (int ready = 0; ready < 3 || processes.size() < 9;) {
    const std::string line = pipe.line();
    if (line == "ready") {
      ++ready;
    } else {
      processes.emplace_back(parse_integer<pid_t>(line).value());
    }
  }
  const auto children = descendants_of(launcher);
  ASSERT_FALSE(children.empty());
  const pid_t keeper = children[0].pid;
  const Watched last(keeper);
  ASSERT_EQ(::kill(launcher, SIGKILL), 0);
  ASSERT_TRUE(last.ended_within(kPatience));
  expect_all_end(processes, 0ms);
  ASSERT_EQ(::waitpid(launcher, nullptr, 0), launcher);
  EXPECT_EQ(::waitpid(keeper, nullptr, 0), keeper);
}

TEST(Keeper, the_loss_of_the_keeper_is_told_and_orphans_can_be_killed) {
  TestKeeper test;
  LinePipe pipe;
  WorkerSpec spec = TestKeeper::shell(kFamily);
  spec.stdout_fd = pipe.write_end();
  const Watched worker(test.start(1, spec));
  const std::vector<Watched> family = read_family(pipe);
  for (const int harmless : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE, SIGTSTP}) {
    ASSERT_EQ(::kill(test.keeper.pid(), harmless), 0);
  }
  test.keeper.signal(1, 0);
  test.start(2, TestKeeper::shell("exit 0"));
  test.next<WorkerExited>();

  ASSERT_EQ(::kill(test.keeper.pid(), SIGKILL), 0);
  const auto lost = test.next<KeeperLost>();
  EXPECT_NE(lost.how.find("signal 9 (SIGKILL)"), std::string::npos) << lost.how;
  EXPECT_TRUE(worker.ended_within(kPatience));
  EXPECT_TRUE(kill_all_descendants(kPatience).empty());
  expect_all_end(family, 0ms);
  test.keeper.start(3, spec);  // comes to nothing
  EXPECT_TRUE(test.keeper.read().empty());
}

TEST(Keeper, it_is_not_found_under_the_launchers_command_line) {
  TestKeeper test;
  test.start(1, TestKeeper::shell("exit 0"));  // the keeper is ready
  const std::string folder = "/proc/" + std::to_string(test.keeper.pid());
  EXPECT_EQ(read_text(folder + "/comm"), "lockstep-keep\n");
  EXPECT_EQ(std::string(read_text(folder + "/cmdline").c_str()), "lockstep-keep");
  const auto process = read_process(test.keeper.pid());
  EXPECT_EQ(process->session, test.keeper.pid());
}
