#include "tests/support/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include <gtest/gtest.h>

#include "core/subprocess.h"
#include "core/unique_fd.h"
#include "lockstep/error.h"
#include "lockstep/store.h"
#include "tests/core/temporary_folder.h"

namespace lockstep::testing {
namespace {

constexpr const char* kMark = "LOCKSTEP_TEST_RANK";
constexpr const char* kTemplateMark = "LOCKSTEP_TEST_TEMPLATE";  // the descriptor of its socket

using Variables = std::map<std::string, std::string>;

std::size_t thread_count() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(threads), end(threads)));
}

// An order tells a new rank what it needs: the first line names its log, the second its test, and
// the others set its variables.
std::string order_of(const std::string& log, const std::string& test, const Variables& variables) {
  std::string order = log + "\n" + test + "\n";
  for (const auto& [name, value] : variables) order += name + "=" + value + "\n";
  return order;
}

void become_rank(const std::string& order, pid_t tester) {
  // The kernel hands orphans to the tester. Until then the parent is another process, whose death
  // must not end this one.
  while (::getppid() != tester) ::usleep(100);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != tester) ::_exit(1);
  std::istringstream lines(order);
  std::string log, test;
  std::getline(lines, log);
  std::getline(lines, test);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  ::unsetenv(kTemplateMark);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end_of_name = line.find('=');
    ::setenv(line.substr(0, end_of_name).c_str(), line.c_str() + end_of_name + 1, 1);
  }
  GTEST_FLAG_SET(filter, test);
  GTEST_FLAG_SET(brief, true);
}

// Forks a rank for each order that comes; returns in the ranks.
void serve_orders(int socket) {
  const pid_t tester = ::getppid();
  if (thread_count() != 1) ::_exit(0);  // they would not come along
  std::array<char, 1 << 16> order{};
  for (;;) {
    const ssize_t size = ::recv(socket, order.data(), order.size(), 0);
    if (size <= 0) ::_exit(0);
    const pid_t between = ::fork();
    if (between == 0) {
      if (::fork() != 0) ::_exit(0);  // its child is an orphan now
      const pid_t self = ::getpid();
      ::send(socket, &self, sizeof(self), MSG_NOSIGNAL);
      ::close(socket);
      return become_rank(std::string(order.data(), static_cast<std::size_t>(size)), tester);
    }
    ::waitpid(between, nullptr, 0);
  }
}

/// A process that has loaded libtorch and done nothing else, from which ranks are forked: loading
/// it takes half a second of a processor.
class RankTemplate {
 public:
  RankTemplate() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    socket_ = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    const std::string mark = std::to_string(other.get());
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const pid_t tester = ::getpid();
    if (const pid_t pid = ::fork(); pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != tester) ::_exit(1);
      ::fcntl(other.get(), F_SETFD, 0);
      ::setenv(kTemplateMark, mark.c_str(), 1);
      ::setenv("OMP_NUM_THREADS", "1", 1);
      ::execl("/proc/self/exe", "/proc/self/exe", nullptr);
      ::_exit(1);
    }
  }

  /// std::nullopt where there is no such process.
  std::optional<pid_t> start(const std::string& order) {
    pid_t pid = -1;
    if (!socket_ || ::send(socket_.get(), order.data(), order.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(socket_.get(), &pid, sizeof(pid), 0) != sizeof(pid)) {
      return std::nullopt;
    }
    return pid;
  }

 private:
  UniqueFd socket_;
};

/// A rank, forked from the template or a program of its own.
class Rank {
 public:
  explicit Rank(const SubprocessOptions& options) : program_(std::in_place, options) {}
  explicit Rank(pid_t pid) : pid_(pid), end_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  Rank(Rank&&) = default;
  ~Rank() {
    if (!end_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  std::optional<ExitStatus> wait_for(std::chrono::milliseconds limit) {
    if (program_) return program_->wait_for(limit);
    pollfd ended{.fd = end_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ended, 1, static_cast<int>(limit.count())) != 1) return std::nullopt;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    end_ = UniqueFd();
    return WIFSIGNALED(status) ? ExitStatus{.signal = WTERMSIG(status)}
                               : ExitStatus{.exit_code = WEXITSTATUS(status)};
  }

 private:
  std::optional<Subprocess> program_;
  pid_t pid_ = -1;
  UniqueFd end_;
};

// Libraries read other variables while they are being loaded, which is too late in a fork.
bool is_ours(const Variables::value_type& variable) {
  return variable.first.starts_with("LOCKSTEP_") || variable.first.starts_with("LOCAL_");
}

Rank start_rank(const std::string& log, const std::string& test, const Variables& variables,
                bool from_template) {
  static RankTemplate ranks;
  if (from_template) {
    if (const auto pid = ranks.start(order_of(log, test, variables))) return Rank(*pid);
  }
  return Rank(
      SubprocessOptions{.argv = {"/proc/self/exe", "--gtest_filter=" + test, "--gtest_brief=1"},
                        .set_environment = variables,
                        .unset_environment = {},
                        .stdout_path = log,
                        .stderr_path = log});
}

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return concat(info->test_suite_name(), ".", info->name());
}

int machine_count(const RanksOptions& options) {
  const char* wanted = std::getenv("LOCKSTEP_TEST_MACHINES");
  return options.machines == 1 && wanted != nullptr ? std::atoi(wanted) : options.machines;
}

}  // namespace

int this_rank() {
  return std::atoi(std::getenv(kMark));
}

void kill_this_process() {
  kill(getpid(), SIGKILL);
  std::abort();
}

void run_in_ranks(const RanksOptions& options, const std::function<void()>& body) {
  if (std::getenv(kMark)) {
    body();
    return;
  }
  const TemporaryFolder folder;
  const Store store = Store::tcp({.serve = true});
  std::vector<Rank> ranks;
  for (int rank = 0; rank < options.count; ++rank) {
    Variables variables = {{kMark, std::to_string(rank)},
                           {"RANK", std::to_string(rank)},
                           {"LOCAL_RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(options.count)},
                           {"LOCAL_WORLD_SIZE", std::to_string(options.count)},
                           {"MASTER_ADDR", "127.0.0.1"},
                           {"MASTER_PORT", std::to_string(store.port())},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"LOCKSTEP_QUIET", "1"},
                           {"OMP_NUM_THREADS", "1"}};
    if (const int machines = machine_count(options); machines > 1) {
      variables["LOCKSTEP_MACHINE"] =
          concat("m", rank * std::min(machines, options.count) / options.count);
    }
    if (!options.gpu) variables["CUDA_VISIBLE_DEVICES"] = "";
    for (const auto& [name, value] : options.environment) variables[name] = value;
    ranks.push_back(start_rank(folder / concat("rank_", rank, ".log"), current_test(), variables,
                               std::ranges::all_of(options.environment, is_ours)));
  }

  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_seconds);
  bool failed = false;
  for (int rank = 0; rank < options.count; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    // After the first failure the others only get a moment: they may wait for it forever.
    const auto status = ranks[rank].wait_for(
        std::max(failed ? std::chrono::milliseconds(3000) : left, std::chrono::milliseconds(1)));
    const bool must_die = std::ranges::find(options.killed, rank) != options.killed.end();
    const bool as_expected = status && (must_die ? status->signal == SIGKILL : status->success());
    if (as_expected) continue;
    failed = true;
    ADD_FAILURE() << "rank " << rank << ": "
                  << (status ? status->describe() : "did not end in time") << "\n"
                  << read_text(folder / concat("rank_", rank, ".log"));
  }
}

}  // namespace lockstep::testing

int main(int count, char** words) {
  const char* socket = std::getenv(lockstep::testing::kTemplateMark);
  if (socket != nullptr) lockstep::testing::serve_orders(std::atoi(socket));
  ::testing::InitGoogleTest(&count, words);
  const int code = RUN_ALL_TESTS();
  if (socket != nullptr) {
    // A forked rank. libtorch takes a quarter of a second to forget its operators one by one.
    std::fflush(nullptr);
    ::_exit(code);
  }
  return code;
}
