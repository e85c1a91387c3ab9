#include "core/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::ExitStatus;
using lockstep::InvalidArgument;
using lockstep::Subprocess;
using lockstep::SubprocessOptions;
using lockstep::SystemError;
using lockstep::UniqueFd;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using namespace std::chrono_literals;

namespace {

// Long enough for a busy machine; a test that needs it has failed.
constexpr auto kChildPatience = 30s;

ExitStatus run_shell(const std::string& script) {
  return Subprocess({.argv = {"sh", "-c", script}}).wait();
}

// What a shell script writes to standard output.
std::string output_of(const std::string& script, SubprocessOptions options = {}) {
  const TemporaryFolder folder;
  options.argv = {"sh", "-c", script};
  options.stdout_path = folder / "out";
  const ExitStatus status = Subprocess(options).wait();
  EXPECT_TRUE(status.success()) << status.describe();
  return read_text(options.stdout_path);
}

bool readable(int fd) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, std::chrono::milliseconds(kChildPatience).count()) == 1;
}

// A named pipe that a test and a program talk through, so that neither has to guess when the other
// is ready. Open for both directions, so that opening it never blocks.
struct Fifo {
  explicit Fifo(const std::string& name) : path(name) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  }

  std::string read_line() {
    std::string line;
    char letter = 0;
    while (readable(fd.get()) && ::read(fd.get(), &letter, 1) == 1 && letter != '\n') {
      line += letter;
    }
    return line;
  }

  std::string path;
  UniqueFd fd;
};

std::string error_of(const SubprocessOptions& options) {
  try {
    Subprocess process(options);
  } catch (const SystemError& error) {
    return error.what();
  }
  return "started";
}

bool has_children() {
  return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD;
}

}  // namespace

TEST(ExitStatus, says_a_code_or_a_signal) {
  EXPECT_EQ((ExitStatus{.exit_code = 3}.describe()), "exit code 3");
  EXPECT_EQ((ExitStatus{.signal = SIGKILL}.describe()), "signal 9 (SIGKILL)");
  EXPECT_EQ((ExitStatus{.signal = SIGRTMIN + 1}.describe()),
            "signal " + std::to_string(SIGRTMIN + 1) + " (SIGRTMIN+1)");
  EXPECT_TRUE(ExitStatus{}.success());
  EXPECT_FALSE((ExitStatus{.exit_code = 1}.success()));
  EXPECT_FALSE((ExitStatus{.signal = SIGTERM}.success()));
}

TEST(Subprocess, an_exit_code_and_a_signal_are_told_apart) {
  EXPECT_EQ(run_shell("exit 0"), ExitStatus{});
  EXPECT_EQ(run_shell("exit 9"), ExitStatus{.exit_code = 9});
  EXPECT_EQ(run_shell("kill -9 $$"), ExitStatus{.signal = SIGKILL});
}

TEST(Subprocess, the_status_is_known_only_after_waiting) {
  Subprocess process({.argv = {"sh", "-c", "exit 4"}});
  EXPECT_EQ(process.status(), std::nullopt);
  EXPECT_EQ(process.wait().exit_code, 4);
  EXPECT_EQ(process.status(), ExitStatus{.exit_code = 4});
  EXPECT_EQ(process.wait().exit_code, 4);
  EXPECT_EQ(process.wait_for(0ms), ExitStatus{.exit_code = 4});
}

TEST(Subprocess, a_program_that_is_nowhere_is_named_and_leaves_nothing_behind) {
  EXPECT_EQ(error_of({.argv = {"lockstep-no-such-program"}, .set_environment = {{"PATH", "/bin"}}}),
            "cannot start 'lockstep-no-such-program': no such program on PATH '/bin'");
  EXPECT_EQ(error_of({.argv = {"/lockstep/no/such/program"}}),
            "cannot start '/lockstep/no/such/program': No such file or directory");
  EXPECT_FALSE(has_children());
}

TEST(Subprocess, a_file_that_is_no_program_is_refused_by_exec_and_named) {
  const TemporaryFolder folder;
  std::ofstream(folder / "data") << "\x7f not a program";
  EXPECT_EQ(
      error_of({.argv = {folder / "data"}}),
      "cannot start '" + (folder / "data") + "': Permission denied (the file is not executable)");
  ASSERT_EQ(::chmod((folder / "data").c_str(), 0700), 0);
  EXPECT_EQ(error_of({.argv = {folder / "data"}}),
            "cannot start '" + (folder / "data") +
                "': Exec format error (it is neither a binary for this machine nor begins with "
                "'#!')");
  std::ofstream(folder / "data") << "#!/nowhere/sh\n";
  EXPECT_EQ(error_of({.argv = {folder / "data"}}),
            "cannot start '" + (folder / "data") +
                "': No such file or directory (the file is there; the interpreter in its first "
                "line, or the loader that it was linked for, is not)");
  EXPECT_FALSE(has_children());
}

TEST(Subprocess, a_program_is_looked_up_on_the_path_it_will_have) {
  const TemporaryFolder folder;
  std::ofstream(folder / "lockstep-test-tool") << "#!/bin/sh\nexit 5\n";
  ASSERT_EQ(::chmod((folder / "lockstep-test-tool").c_str(), 0700), 0);
  Subprocess process({.argv = {"lockstep-test-tool"},
                      .set_environment = {{"PATH", "/nowhere:" + folder.path().string()}}});
  EXPECT_EQ(process.wait().exit_code, 5);
}

TEST(Subprocess, arguments_arrive_unchanged) {
  const TemporaryFolder folder;
  Subprocess process(
      {.argv = {"printf", "%s|", "a b", "", "$HOME", "'\"\n"}, .stdout_path = folder / "out"});
  ASSERT_TRUE(process.wait().success());
  EXPECT_EQ(read_text(folder / "out"), "a b||$HOME|'\"\n|");
}

TEST(Subprocess, variables_are_added_replaced_and_taken_away) {
  ASSERT_NE(::getenv("PATH"), nullptr);
  ::setenv("LOCKSTEP_TEST_OLD", "old", 1);
  ::setenv("LOCKSTEP_TEST_GONE", "here", 1);
  const std::string script =
      "echo $LOCKSTEP_TEST_OLD ${LOCKSTEP_TEST_GONE-gone} $LOCKSTEP_TEST_NEW";
  EXPECT_EQ(output_of(script), "old here\n");
  EXPECT_EQ(output_of(script, {.set_environment = {{"LOCKSTEP_TEST_OLD", "changed"},
                                                   {"LOCKSTEP_TEST_NEW", "a=b"}},
                               .unset_environment = {"LOCKSTEP_TEST_GONE", "LOCKSTEP_TEST_NEW"}}),
            "changed gone a=b\n");
  ::unsetenv("LOCKSTEP_TEST_OLD");
  ::unsetenv("LOCKSTEP_TEST_GONE");
}

TEST(Subprocess, options_that_no_program_can_receive_are_refused) {
  EXPECT_THROW(Subprocess({}), InvalidArgument);
  EXPECT_THROW(Subprocess({.argv = {""}}), InvalidArgument);
  EXPECT_THROW(Subprocess({.argv = {"true", std::string("a\0b", 3)}}), InvalidArgument);
  EXPECT_THROW(Subprocess({.argv = {"true"}, .set_environment = {{"A=B", "c"}}}), InvalidArgument);
  EXPECT_THROW(Subprocess({.argv = {"true"}, .set_environment = {{"", "c"}}}), InvalidArgument);
  EXPECT_THROW(Subprocess({.argv = {"true"}, .unset_environment = {"A=B"}}), InvalidArgument);
  EXPECT_FALSE(has_children());
}

TEST(Subprocess, output_goes_to_its_files_and_replaces_what_was_there) {
  const TemporaryFolder folder;
  std::ofstream(folder / "out") << "from an earlier run, and longer";
  Subprocess process({.argv = {"sh", "-c", "echo to out; echo to err >&2"},
                      .stdout_path = folder / "out",
                      .stderr_path = folder / "err"});
  ASSERT_TRUE(process.wait().success());
  EXPECT_EQ(read_text(folder / "out"), "to out\n");
  EXPECT_EQ(read_text(folder / "err"), "to err\n");
}

TEST(Subprocess, output_and_errors_may_share_a_file) {
  const TemporaryFolder folder;
  Subprocess process({.argv = {"sh", "-c", "echo 1; echo 2 >&2; echo 3"},
                      .stdout_path = folder / "both",
                      .stderr_path = folder / "both"});
  ASSERT_TRUE(process.wait().success());
  EXPECT_EQ(read_text(folder / "both"), "1\n2\n3\n");
}

TEST(Subprocess, an_output_file_that_cannot_be_opened_is_named) {
  EXPECT_EQ(
      error_of({.argv = {"true"}, .stderr_path = "/lockstep/no/such/log"}),
      "cannot open '/lockstep/no/such/log' for a program's output: No such file or directory");
}

TEST(Subprocess, output_reaches_its_file_although_our_own_output_is_closed) {
  const TemporaryFolder folder;
  const UniqueFd saved(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10));
  ::close(STDOUT_FILENO);
  const ExitStatus status = Subprocess({.argv = {"sh", "-c", "echo out; echo err >&2"},
                                        .stdout_path = folder / "out",
                                        .stderr_path = folder / "err"})
                                .wait();
  ::dup2(saved.get(), STDOUT_FILENO);
  EXPECT_TRUE(status.success());
  EXPECT_EQ(read_text(folder / "out"), "out\n");
  EXPECT_EQ(read_text(folder / "err"), "err\n");
}

TEST(Subprocess, descriptors_beyond_the_standard_three_are_not_inherited) {
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));
  ASSERT_GT(leaky.get(), STDERR_FILENO);
  EXPECT_EQ(output_of("[ -e /proc/$$/fd/" + std::to_string(leaky.get()) + " ] || echo closed"),
            "closed\n");
}

TEST(Subprocess, signals_that_we_block_or_ignore_for_ourselves_are_not_inherited) {
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto old_pipe = ::signal(SIGPIPE, SIG_IGN);
  const auto old_user = ::signal(SIGUSR1, [](int) {});
  const auto dies_of = [](const char* name) {
    return run_shell(std::string("kill -s ") + name + " $$").signal;
  };
  EXPECT_EQ(dies_of("TERM"), SIGTERM);
  EXPECT_EQ(dies_of("PIPE"), SIGPIPE);
  EXPECT_EQ(dies_of("USR1"), SIGUSR1);
  ::signal(SIGUSR1, old_user);
  ::signal(SIGPIPE, old_pipe);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(Subprocess, our_own_signal_mask_is_unchanged_by_a_start) {
  sigset_t mask;
  sigset_t before;
  sigset_t after;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGUSR2);
  ::pthread_sigmask(SIG_SETMASK, &mask, &before);
  run_shell("exit 0");
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  for (int number = 1; number < NSIG; ++number) {
    EXPECT_EQ(::sigismember(&after, number), number == SIGUSR2 ? 1 : 0) << number;
  }
}

TEST(Subprocess, waiting_ends_when_its_time_is_over) {
  Subprocess process({.argv = {"sleep", "600"}});
  EXPECT_EQ(process.wait_for(0ms), std::nullopt);
  EXPECT_EQ(process.wait_for(-5ms), std::nullopt);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(process.wait_for(50ms), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 50ms);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait_for(kChildPatience), ExitStatus{.signal = SIGTERM});
}

TEST(Subprocess, waiting_ends_as_soon_as_the_program_does) {
  const TemporaryFolder folder;
  Fifo fifo(folder / "go");
  Subprocess process({.argv = {"sh", "-c", "read line < \"$0\"; exit 7", fifo.path}});
  EXPECT_EQ(process.wait_for(0ms), std::nullopt);
  ASSERT_EQ(::write(fifo.fd.get(), "go\n", 3), 3);
  EXPECT_EQ(process.wait_for(std::chrono::milliseconds::max()), ExitStatus{.exit_code = 7});
}

TEST(Subprocess, the_descriptor_becomes_readable_at_the_end) {
  Subprocess process({.argv = {"sleep", "600"}});
  pollfd entry = {.fd = process.pidfd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  process.signal(SIGKILL);
  EXPECT_TRUE(readable(process.pidfd()));
  EXPECT_EQ(process.wait().signal, SIGKILL);
}

TEST(Subprocess, waiting_goes_on_after_a_signal_to_ourselves) {
  static std::atomic<int> alarms;
  alarms = 0;
  const auto old_handler = ::signal(SIGALRM, [](int) { ++alarms; });
  const itimerval every_5ms = {.it_interval = {0, 5000}, .it_value = {0, 5000}};
  const itimerval never = {};
  Subprocess process({.argv = {"sleep", "600"}});
  const auto start = std::chrono::steady_clock::now();
  ::setitimer(ITIMER_REAL, &every_5ms, nullptr);
  EXPECT_EQ(process.wait_for(100ms), std::nullopt);
  ::setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 100ms);
  EXPECT_GT(alarms, 0);
  ::signal(SIGALRM, old_handler);
}

TEST(Subprocess, a_signal_after_the_end_does_nothing) {
  Subprocess process({.argv = {"true"}});
  process.wait();
  EXPECT_NO_THROW(process.signal(SIGKILL));
  EXPECT_EQ(process.status(), ExitStatus{});
}

TEST(Subprocess, a_signal_that_does_not_exist_is_refused) {
  Subprocess process({.argv = {"sleep", "600"}});
  EXPECT_THROW(process.signal(1000), SystemError);
}

TEST(Subprocess, the_destructor_kills_and_leaves_no_zombie) {
  pid_t pid = 0;
  {
    Subprocess process({.argv = {"sh", "-c", "trap '' TERM; exec sleep 600"}});
    pid = process.pid();
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_FALSE(has_children());
}

TEST(Subprocess, moving_hands_the_program_over) {
  Subprocess first({.argv = {"sleep", "600"}});
  const pid_t pid = first.pid();
  Subprocess second(std::move(first));
  EXPECT_EQ(second.pid(), pid);
  EXPECT_EQ(second.wait_for(0ms), std::nullopt);

  Subprocess third({.argv = {"sleep", "600"}});
  const pid_t replaced = third.pid();
  third = std::move(second);
  EXPECT_EQ(third.pid(), pid);
  EXPECT_EQ(::kill(replaced, 0), -1);
  EXPECT_EQ(third.wait_for(0ms), std::nullopt);
}

TEST(Subprocess, many_threads_may_start_programs_at_once) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread, &wrong] {
      for (int turn = 0; turn < 10; ++turn) {
        const int code = thread * 10 + turn;
        wrong += run_shell("exit " + std::to_string(code)).exit_code != code;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(has_children());
}

TEST(Subprocess, a_program_dies_with_its_parent) {
  const TemporaryFolder folder;
  Fifo fifo(folder / "pid");
  Subprocess parent({.argv = {LOCKSTEP_SUBPROCESS_HELPER}, .stdout_path = fifo.path});
  const pid_t grandchild = std::stoi(fifo.read_line());
  const UniqueFd watch(static_cast<int>(::syscall(SYS_pidfd_open, grandchild, 0)));
  ASSERT_TRUE(watch);
  parent.signal(SIGKILL);
  parent.wait();
  EXPECT_TRUE(readable(watch.get())) << "the program outlived its parent";
}

TEST(Subprocess, a_program_dies_with_the_thread_that_started_it) {
  const TemporaryFolder folder;
  Fifo fifo(folder / "pid");
  Subprocess parent({.argv = {LOCKSTEP_SUBPROCESS_HELPER, "thread"}, .stdout_path = fifo.path});
  EXPECT_NE(fifo.read_line(), "");
  EXPECT_EQ(fifo.read_line(), "ended");
}
