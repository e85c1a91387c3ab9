#include "launch/kill_descendants.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>
#include <thread>

#include "core/unique_fd.h"

namespace lockstep {
namespace {

// By descriptor, and only if it is still the process that was found: between the search and now its
// pid may have become a stranger's.
void kill_if_same(const ProcessInfo& process) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd) {
    return;
  }
  const auto now = read_process(process.pid);
  if (now && now->start_ticks == process.start_ticks) {
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  }
}

// True when this process has no child left.
bool reap_what_has_ended() {
  for (;;) {
    siginfo_t info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) {
      if (errno == EINTR) {
        continue;
      }
      return true;  // ECHILD
    }
    if (info.si_pid == 0) {
      return false;
    }
  }
}

}  // namespace

void kill_descendants_once(KillScope scope) {
  const pid_t own_session = ::getsid(0);
  std::set<pid_t> groups;
  for (const ProcessInfo& process : descendants_of(::getpid())) {
    // Also what shows as a zombie: its main thread may have ended while others run.
    kill_if_same(process);
    // A session that is not ours was made by a descendant, and so all that is in it descends from
    // this process too.
    if (process.session != own_session) {
      groups.insert(process.group);
    }
  }
  if (scope == KillScope::groups_of_sessions) {
    for (const pid_t group : groups) {
      ::kill(-group, SIGKILL);
    }
  }
}

std::vector<StuckProcess> stuck_descendants() {
  std::vector<StuckProcess> stuck;
  for (const ProcessInfo& process : descendants_of(::getpid())) {
    stuck.push_back(
        {.pid = process.pid, .description = describe(process, blocked_thread(process.pid))});
  }
  return stuck;
}

std::vector<StuckProcess> kill_all_descendants(std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const Clock::time_point deadline = Clock::now() + limit;
  KillScope scope = KillScope::processes;
  for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(50))) {
    kill_descendants_once(scope);
    if (reap_what_has_ended()) {
      return {};
    }
    if (Clock::now() >= deadline) {
      return stuck_descendants();
    }
    std::this_thread::sleep_for(pause);
    scope = KillScope::groups_of_sessions;
  }
}

}  // namespace lockstep
