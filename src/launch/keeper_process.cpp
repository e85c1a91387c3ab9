#include "launch/keeper_process.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/exec_process.h"
#include "launch/background_process.h"
#include "launch/event_loop.h"
#include "launch/keeper_protocol.h"
#include "launch/kill_descendants.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

std::int64_t monotonic_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

UniqueFd watch_child_ends() {
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGCHLD);
  ::sigprocmask(SIG_SETMASK, &ends, nullptr);
  UniqueFd fd(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) {
    throw_errno("cannot watch for SIGCHLD");
  }
  return fd;
}

class KeeperProcess {
 public:
  explicit KeeperProcess(KeeperProcessOptions options);
  void run() { loop_.run(); }

 private:
  struct Worker {
    pid_t pid = 0;
    UniqueFd pidfd;
    bool held = false;  // ended, but a debugger has yet to let go of it
  };
  using Workers = std::map<std::uint64_t, Worker>;

  void read_commands();
  void take(ChannelMessage message);
  void operate(const StartWorker& command);
  void operate(const SignalWorker& command);
  void operate(const KillLeftovers& command);
  pid_t start(const WorkerSpec& spec);
  void send(const KeeperEvent& event);
  void flush();

  void on_worker_end(std::uint64_t id);
  bool reap_worker(Workers::iterator worker);
  void on_child_end();
  void reap_orphans();
  Workers::iterator find_worker(pid_t pid);

  bool killing() const { return ending_ || !kill_requests_.empty(); }
  void cancel_timers();
  void begin_killing();
  void kill_round();
  void report_stuck();
  void on_no_child_left();
  void on_launcher_end();

  KeeperProcessOptions options_;
  EventLoop loop_;
  UniqueFd child_ends_;
  Workers workers_;
  std::int64_t last_end_ns_ = 0;
  bool orphans_wait_ = false;  // until a worker that ended has been dealt with in its turn

  std::deque<std::string> outgoing_;  // events that the launcher has had no room for
  bool waits_for_room_ = false;
  std::deque<ChannelMessage> deferred_;  // commands that wait for the end of the killing

  bool ending_ = false;
  std::vector<std::uint64_t> kill_requests_;
  milliseconds kill_pause_{};
  std::optional<EventLoop::TimerId> kill_timer_;
  std::optional<EventLoop::TimerId> stuck_timer_;
};

KeeperProcess::KeeperProcess(KeeperProcessOptions options)
    : options_(std::move(options)), child_ends_(watch_child_ends()) {
  loop_.watch(child_ends_.get(), EPOLLIN, [this](std::uint32_t) { on_child_end(); });
  loop_.watch(options_.channel.fd(), EPOLLIN, [this](std::uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
      flush();
    }
    if (!ending_) {
      read_commands();
    }
  });
  // A process that the launcher forked may still hold the other end of the channel.
  loop_.watch(options_.launcher_pidfd.get(), EPOLLIN, [this](std::uint32_t) { on_launcher_end(); });
}

void KeeperProcess::read_commands() {
  for (;;) {
    ChannelMessage message;
    switch (options_.channel.receive(message)) {
      case ChannelResult::done:
        take(std::move(message));
        break;
      case ChannelResult::would_block:
        return;
      case ChannelResult::closed:
        return on_launcher_end();
    }
    if (ending_) {
      return;
    }
  }
}

void KeeperProcess::take(ChannelMessage message) {
  const KeeperCommand command = decode_command(message);
  // A worker started now would be killed with the others. What follows it keeps its place.
  if (!deferred_.empty() || (killing() && std::holds_alternative<StartWorker>(command))) {
    deferred_.push_back(std::move(message));
    return;
  }
  std::visit([this](const auto& what) { operate(what); }, command);
}

void KeeperProcess::operate(const StartWorker& command) {
  const std::uint64_t id = command.id;
  try {
    LOCKSTEP_CHECK(!workers_.contains(id), "two workers have the id ", id);
    Worker worker;
    worker.pid = start(command.spec);
    // The pid cannot be reused before we wait for it, so this is the right process even if it has
    // already ended.
    worker.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, worker.pid, 0)));
    if (!worker.pidfd) {
      const int code = errno;
      ::kill(-worker.pid, SIGKILL);
      ::waitpid(worker.pid, nullptr, 0);
      throw StartError(concat("cannot watch '", command.spec.argv[0], "': ", std::strerror(code)),
                       code);
    }
    // Watched before it is told of: the order of ends is the order in which watched pidfds became
    // ready, and a worker that ended unwatched would come after those that ended later.
    const pid_t pid = worker.pid;
    loop_.watch(worker.pidfd.get(), EPOLLIN, [this, id](std::uint32_t) { on_worker_end(id); });
    workers_.emplace(id, std::move(worker));
    send(WorkerStarted{.id = id, .pid = pid});
  } catch (const StartError& error) {
    send(WorkerStartFailed{.id = id, .reason = error.what(), .error = error.code()});
  } catch (const Error& error) {
    send(WorkerStartFailed{.id = id, .reason = error.what()});
  }
}

pid_t KeeperProcess::start(const WorkerSpec& spec) {
  const UniqueFd stdout_file = open_output_file(spec.stdout_path);
  const UniqueFd stderr_file = open_output_file(spec.stderr_path);
  return exec_process(
      {.argv = spec.argv,
       .environment = spec.environment,
       .working_directory = spec.working_directory,
       .stdout_fd = stdout_file ? stdout_file.get() : spec.stdout_fd,
       .stderr_fd = stderr_file ? stderr_file.get() : spec.stderr_fd,
       .die_with_parent = true,
       .new_session = true,
       .cpus = spec.cpus,
       .ignored_signals = options_.ignore_hangup ? std::vector<int>{SIGHUP} : std::vector<int>()});
}

void KeeperProcess::operate(const SignalWorker& command) {
  // Once a worker has been waited for its pid may be a stranger's, and it is no longer listed.
  if (const auto found = workers_.find(command.id); found != workers_.end()) {
    ::kill(-found->second.pid, command.number);
  }
}

void KeeperProcess::operate(const KillLeftovers& command) {
  kill_requests_.push_back(command.request);
  begin_killing();
}

void KeeperProcess::send(const KeeperEvent& event) {
  if (!ending_) {
    outgoing_.push_back(encode(event));
    flush();
  }
}

void KeeperProcess::flush() {
  while (!outgoing_.empty()) {
    switch (options_.channel.send(outgoing_.front(), {})) {
      case ChannelResult::done:
        outgoing_.pop_front();
        break;
      case ChannelResult::would_block:
        if (!std::exchange(waits_for_room_, true)) {
          loop_.change(options_.channel.fd(), EPOLLIN | EPOLLOUT);
        }
        return;
      case ChannelResult::closed:
        outgoing_.clear();  // reading will find the same
        break;
    }
  }
  if (std::exchange(waits_for_room_, false)) {
    loop_.change(options_.channel.fd(), EPOLLIN);
  }
}

// epoll reports what became ready first before what did so later. Therefore the ends of workers are
// taken from their descriptors: waiting for any child would give them in the order of their starts.
void KeeperProcess::on_worker_end(std::uint64_t id) {
  const auto worker = workers_.find(id);
  if (!reap_worker(worker)) {
    // A debugger that is attached takes note of the end first. Its descriptor stays ready, so we
    // would turn in circles; SIGCHLD comes when the debugger has let go.
    loop_.unwatch(worker->second.pidfd.get());
    worker->second.held = true;
  }
  if (orphans_wait_) {
    reap_orphans();
  }
}

bool KeeperProcess::reap_worker(Workers::iterator worker) {
  siginfo_t info = {};
  const auto pid = static_cast<id_t>(worker->second.pid);
  while (::waitid(P_PID, pid, &info, WEXITED | WNOHANG) != 0) {
    if (errno != EINTR) {
      throw_errno(concat("cannot wait for worker ", pid));
    }
  }
  if (info.si_pid == 0) {
    return false;
  }
  if (!worker->second.held) {
    loop_.unwatch(worker->second.pidfd.get());
  }
  last_end_ns_ = std::max(last_end_ns_ + 1, monotonic_ns());
  const ExitStatus status = info.si_code == CLD_EXITED ? ExitStatus{.exit_code = info.si_status}
                                                       : ExitStatus{.signal = info.si_status};
  send(WorkerExited{.id = worker->first,
                    .pid = worker->second.pid,
                    .status = status,
                    .monotonic_ns = last_end_ns_});
  workers_.erase(worker);
  return true;
}

void KeeperProcess::on_child_end() {
  signalfd_siginfo ignored = {};
  while (::read(child_ends_.get(), &ignored, sizeof ignored) > 0) {
  }
  reap_orphans();
}

// Takes note of the ends of processes that came to us when their parents ended, and of workers that
// a debugger has let go of.
void KeeperProcess::reap_orphans() {
  orphans_wait_ = false;
  for (;;) {
    siginfo_t info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      if (errno == EINTR) {
        continue;
      }
      return on_no_child_left();  // ECHILD
    }
    if (info.si_pid == 0) {
      return;
    }
    const auto worker = find_worker(info.si_pid);
    if (worker == workers_.end()) {
      ::waitpid(info.si_pid, nullptr, 0);
    } else if (worker->second.held) {
      reap_worker(worker);
    } else {
      orphans_wait_ = true;  // its descriptor is ready, and its turn comes next
      return;
    }
  }
}

KeeperProcess::Workers::iterator KeeperProcess::find_worker(pid_t pid) {
  return std::find_if(workers_.begin(), workers_.end(),
                      [pid](const auto& entry) { return entry.second.pid == pid; });
}

void KeeperProcess::cancel_timers() {
  for (auto* timer : {&kill_timer_, &stuck_timer_}) {
    if (*timer) {
      loop_.cancel(**timer);
      timer->reset();
    }
  }
}

void KeeperProcess::begin_killing() {
  cancel_timers();
  kill_pause_ = milliseconds(0);
  stuck_timer_ = loop_.after(options_.stuck_after, [this] { report_stuck(); });
  kill_round();
}

// Ends come by SIGCHLD; the timer is for what was started while we searched.
void KeeperProcess::kill_round() {
  constexpr milliseconds kFirstPause(2);
  constexpr milliseconds kLongestPause(200);
  const bool first = kill_pause_ == milliseconds(0);
  kill_descendants_once(first ? KillScope::processes : KillScope::groups_of_sessions);
  kill_pause_ = first ? kFirstPause : std::min(2 * kill_pause_, kLongestPause);
  kill_timer_ = loop_.after(kill_pause_, [this] { kill_round(); });
  reap_orphans();
}

void KeeperProcess::report_stuck() {
  stuck_timer_.reset();
  const std::vector<StuckProcess> stuck = stuck_descendants();
  for (const std::uint64_t request : kill_requests_) {
    send(StuckProcesses{.request = request, .processes = stuck});
  }
  if (ending_) {
    for (const StuckProcess& process : stuck) {
      std::fprintf(stderr, "lockstep: killed, but still there: process %s\n",
                   process.description.c_str());
    }
  }
}

void KeeperProcess::on_no_child_left() {
  if (!killing()) {
    return;
  }
  cancel_timers();
  if (ending_) {
    loop_.stop();
    return;
  }
  for (const std::uint64_t request : std::exchange(kill_requests_, {})) {
    send(AllGone{.request = request});
  }
  for (std::deque<ChannelMessage> waiting = std::exchange(deferred_, {}); !waiting.empty();
       waiting.pop_front()) {
    take(std::move(waiting.front()));
  }
}

void KeeperProcess::on_launcher_end() {
  if (ending_) {
    return;
  }
  ending_ = true;
  outgoing_.clear();
  deferred_.clear();
  loop_.unwatch(options_.channel.fd());
  loop_.unwatch(options_.launcher_pidfd.get());
  options_.channel.close();
  begin_killing();
}

}  // namespace

void run_keeper_process(KeeperProcessOptions options) noexcept {
  int code = 0;
  try {
    ::setsid();
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
      throw_errno("cannot become the reaper of orphans");
    }
    ignore_what_can_be_ignored();
    close_all_but({options.channel.fd(), options.launcher_pidfd.get()});
    set_process_title("lockstep-keep");
    KeeperProcess(std::move(options)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: the keeper of the workers failed: %s\n", error.what());
    kill_all_descendants(std::chrono::seconds(10));
    code = 1;
  }
  ::_exit(code);
}

}  // namespace lockstep
