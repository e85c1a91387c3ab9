#include "launch/stop_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "core/signal_names.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::array kForWorkers = {SIGUSR1, SIGUSR2, SIGWINCH};

void check_stop_signal(int number) {
  const auto refuse = [number](std::string_view why) {
    throw InvalidArgument(
        concat(signal_name(number), " cannot be one of the signals that stop the job: ", why));
  };
  switch (number) {
    case SIGKILL:
    case SIGSTOP:
      return refuse("no process can handle it");
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
      return refuse("it means that this process has crashed");
    case SIGCHLD:
      return refuse("it comes whenever a process that was started here ends");
    default:
      break;
  }
  if (number <= 0 || number >= NSIG) {
    refuse("there is no such signal");
  }
}

bool is_ignored(int number) {
  struct sigaction action = {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

std::vector<int> default_stop_signals() {
  return {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
}

SignalInbox::SignalInbox(std::vector<int> stop_signals) : stop_signals_(std::move(stop_signals)) {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int number : stop_signals_) {
    check_stop_signal(number);
    // A blocked signal comes even if it is ignored, so an ignored one must not be blocked.
    if (number != SIGHUP || !is_ignored(SIGHUP)) {
      ::sigaddset(&watched, number);
    }
  }
  for (const int number : kForWorkers) {
    ::sigaddset(&watched, number);
  }
  fd_ = UniqueFd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) {
    throw_errno("cannot watch for signals");
  }
  ::pthread_sigmask(SIG_BLOCK, &watched, &mask_before_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
}

SignalInbox::~SignalInbox() {
  while (next()) {
  }
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> SignalInbox::next() {
  signalfd_siginfo info = {};
  for (;;) {
    const ssize_t count = ::read(fd_.get(), &info, sizeof info);
    if (count == sizeof info) {
      return static_cast<int>(info.ssi_signo);
    }
    if (count >= 0 || errno != EINTR) {
      return std::nullopt;
    }
  }
}

bool SignalInbox::is_stop(int number) const {
  return std::find(stop_signals_.begin(), stop_signals_.end(), number) != stop_signals_.end();
}

}  // namespace lockstep
