#include "core/subprocess.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/exec_process.h"
#include "core/signal_names.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

void check_name(const std::string& name) {
  if (name.empty() || name.find('=') != std::string::npos) {
    throw InvalidArgument(concat("Subprocess: '", name, "' cannot be a variable's name"));
  }
}

std::map<std::string, std::string> new_environment(const SubprocessOptions& options) {
  const Environment inherited = Environment::of_process();
  std::map<std::string, std::string> variables(inherited.variables().begin(),
                                               inherited.variables().end());
  for (const std::string& name : options.unset_environment) {
    check_name(name);
    variables.erase(name);
  }
  for (const auto& [name, value] : options.set_environment) {
    check_name(name);
    variables[name] = value;
  }
  return variables;
}

pid_t start(const SubprocessOptions& options) {
  const UniqueFd stdout_fd = open_output_file(options.stdout_path);
  const UniqueFd stderr_fd = open_output_file(options.stderr_path);
  return exec_process({.argv = options.argv,
                       .environment = new_environment(options),
                       .stdout_fd = stdout_fd.get(),
                       .stderr_fd = stderr_fd.get(),
                       .die_with_parent = options.die_with_parent});
}

// By descriptor and not by pid: if someone else in this process waits for all children, the pid may
// already be a stranger's.
bool send_signal(int pidfd, int number) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0) == 0 || errno == ESRCH;
}

void wait_until_reaped(pid_t pid, int* raw_status) {
  while (::waitpid(pid, raw_status, 0) < 0) {
    if (errno != EINTR) {
      // Someone else waited for our child, or SIGCHLD is ignored: its status is lost.
      throw_errno(concat("cannot wait for process ", pid));
    }
  }
}

// True once the process has ended. Never spins: poll sleeps in the kernel until then.
bool poll_until(int pidfd, Clock::time_point deadline) {
  using std::chrono::milliseconds;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const auto bounded = std::clamp(left, milliseconds(0), milliseconds(std::chrono::hours(1)));
    pollfd entry = {.fd = pidfd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(bounded.count()));
    if (ready > 0) {
      return true;
    }
    if (ready < 0 && errno != EINTR) {
      throw_errno("cannot poll a process");
    }
    if (Clock::now() >= deadline) {
      return false;
    }
  }
}

}  // namespace

std::string ExitStatus::describe() const {
  if (signal == 0) {
    return concat("exit code ", exit_code);
  }
  return concat("signal ", signal, " (", signal_name(signal), ")");
}

Subprocess::Subprocess(const SubprocessOptions& options) : pid_(start(options)) {
  // The pid cannot be reused before we wait for it, so this is the right process even if it has
  // already ended.
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    const int code = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    errno = code;
    throw_errno(concat("cannot watch '", options.argv[0], "'"));
  }
}

Subprocess::~Subprocess() {
  kill_and_reap();
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  if (this != &other) {
    kill_and_reap();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    status_ = std::exchange(other.status_, std::nullopt);
  }
  return *this;
}

std::optional<ExitStatus> Subprocess::wait_for(std::chrono::milliseconds timeout) {
  LOCKSTEP_CHECK(pid_ > 0, "a Subprocess was used after it was moved from");
  if (!status_) {
    // Clamped so that "for ever", written as milliseconds::max(), does not overflow the clock.
    const auto bounded = std::min<std::chrono::milliseconds>(timeout, std::chrono::years(1));
    if (poll_until(pidfd_.get(), Clock::now() + bounded)) {
      reap();
    }
  }
  return status_;
}

ExitStatus Subprocess::wait() {
  LOCKSTEP_CHECK(pid_ > 0, "a Subprocess was used after it was moved from");
  if (!status_) {
    reap();
  }
  return *status_;
}

void Subprocess::signal(int number) {
  if (pid_ > 0 && !status_ && !send_signal(pidfd_.get(), number)) {
    throw_errno(concat("cannot send signal ", number, " to process ", pid_));
  }
}

void Subprocess::reap() {
  int raw = 0;
  wait_until_reaped(pid_, &raw);
  status_ = WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)}
                             : ExitStatus{.exit_code = WEXITSTATUS(raw)};
}

void Subprocess::kill_and_reap() noexcept {
  if (pid_ > 0 && !status_) {
    send_signal(pidfd_.get(), SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace lockstep
