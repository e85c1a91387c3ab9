#pragma once

#include <sys/types.h>
#include <chrono>
#include <string>
#include <vector>

#include "launch/descendants.h"

namespace lockstep {

/// Whom a round of killing is aimed at.
enum class KillScope {
  processes,           // every descendant found
  groups_of_sessions,  // besides, their process groups, where those lie outside our own session
};

/// Sends SIGKILL once to every descendant of this process, those in sessions of their own included,
/// and returns without waiting. A process that one of them starts meanwhile may be missed, so call
/// it again until this process has no child left. A process that keeps replacing itself can be
/// faster than the search; it is caught by KillScope::groups_of_sessions, which the kernel does in
/// one go. This process must not have left a session since it has had children.
void kill_descendants_once(KillScope scope);

/// A process that did not end after SIGKILL, and why, in words.
struct StuckProcess {
  pid_t pid = 0;
  std::string description;
  bool operator==(const StuckProcess&) const = default;
};

/// All descendants of this process that are still there.
std::vector<StuckProcess> stuck_descendants();

/// Kills every descendant of this process and takes note of their ends, until none is left or the
/// time is over; returns those that are left. Blocks. For a process that is a subreaper
/// (PR_SET_CHILD_SUBREAPER), as otherwise orphans are not its descendants, and that waits for no
/// child elsewhere.
std::vector<StuckProcess> kill_all_descendants(std::chrono::milliseconds limit);

}  // namespace lockstep
