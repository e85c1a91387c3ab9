#include "launch/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>

#include "launch/keeper_process.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

UniqueFd open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) {
    throw_errno(concat("cannot watch process ", pid, " (pidfd_open, Linux 5.3 or newer)"));
  }
  return fd;
}

bool ignores(int number) {
  struct sigaction action = {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// False if it has not ended in time.
bool wait_for_end(int pidfd, milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd entry = {.fd = pidfd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
    if (ready > 0) {
      return true;
    }
    if (Clock::now() >= deadline) {
      return false;
    }
  }
}

// From here to the keeper's own setting, no signal may reach it: it would die of it, or run a
// handler that is this process's.
template <typename Function>
pid_t fork_with_signals_blocked(Function child) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {
    child();
  }
  const int code = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = code;
  return pid;
}

}  // namespace

Keeper::Keeper(const KeeperOptions& options) : channel_(UniqueFd()) {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw_errno("cannot become the reaper of orphans");
  }
  auto [ours, theirs] = MessageChannel::pair();
  UniqueFd own_pidfd = open_pidfd(::getpid());
  channel_ = std::move(ours);
  pid_ = fork_with_signals_blocked([&, &theirs = theirs] {
    run_keeper_process({.channel = std::move(theirs),
                        .launcher_pidfd = std::move(own_pidfd),
                        .ignore_hangup = ignores(SIGHUP),
                        .stuck_after = options.stuck_after});
  });
  if (pid_ < 0) {
    throw_errno("cannot start the keeper of the workers");
  }
  pidfd_ = open_pidfd(pid_);
}

Keeper::~Keeper() {
  constexpr milliseconds kLimit(10'000);
  channel_.close();
  if (!lost_ && wait_for_end(pidfd_.get(), kLimit)) {
    ::waitpid(pid_, nullptr, 0);
  }
}

std::vector<KeeperEvent> Keeper::read() {
  std::vector<KeeperEvent> events;
  while (!lost_) {
    ChannelMessage message;
    const ChannelResult result = channel_.receive(message);
    if (result == ChannelResult::would_block) {
      break;
    }
    if (result == ChannelResult::done) {
      events.push_back(decode_event(message));
    } else {
      lost_ = true;
      events.push_back(how_it_ended());
    }
  }
  return events;
}

KeeperLost Keeper::how_it_ended() {
  // Its descriptors are closed a moment before it has ended.
  constexpr milliseconds kMoment(1000);
  int raw = 0;
  if (!wait_for_end(pidfd_.get(), kMoment) || ::waitpid(pid_, &raw, 0) != pid_) {
    return {.how = concat("the keeper of the workers (process ", pid_, ") has gone away")};
  }
  const ExitStatus status = WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)}
                                             : ExitStatus{.exit_code = WEXITSTATUS(raw)};
  return {.how = concat("the keeper of the workers (process ", pid_, ") ended: ", status.describe(),
                        unresponsive_ ? ", by the launcher, as it took no commands" : "")};
}

void Keeper::start(std::uint64_t id, const WorkerSpec& spec) {
  send(StartWorker{.id = id, .spec = spec});
}

void Keeper::signal(std::uint64_t id, int number) {
  send(SignalWorker{.id = id, .number = number});
}

void Keeper::kill_leftovers(std::uint64_t request) {
  send(KillLeftovers{.request = request});
}

void Keeper::send(const KeeperCommand& command) {
  if (lost_) return;
  const std::string bytes = encode(command);
  const std::vector<int> fds = attached_fds(command);
  if (pending_.empty() && channel_.send(bytes, fds) != ChannelResult::would_block) return;
  if (pending_.empty()) pending_since_ = Clock::now();
  Pending& waiting = pending_.emplace_back(Pending{.bytes = bytes, .fds = {}});
  for (const int fd : fds) {
    waiting.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!waiting.fds.back()) throw_errno("cannot keep a worker's output open");
  }
}

void Keeper::flush() {
  while (!lost_ && !pending_.empty()) {
    std::vector<int> fds;
    for (const UniqueFd& fd : pending_.front().fds) fds.push_back(fd.get());
    if (channel_.send(pending_.front().bytes, fds) == ChannelResult::would_block) break;
    pending_.pop_front();
    pending_since_ = Clock::now();
  }
  if (pending_.empty() || unresponsive_ || Clock::now() - pending_since_ < kPatience) return;
  unresponsive_ = true;
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

}  // namespace lockstep
