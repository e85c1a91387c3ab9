#pragma once

#include <chrono>

#include "core/unique_fd.h"
#include "launch/message_channel.h"

namespace lockstep {

/// What the keeper process is born with.
struct KeeperProcessOptions {
  MessageChannel channel;                   // to the launcher
  UniqueFd launcher_pidfd;                  // readable once the launcher has ended
  bool ignore_hangup = false;               // the launcher was started with SIGHUP ignored
  std::chrono::milliseconds stuck_after{};  // when to name processes that do not die
};

/// The life of the keeper process, from right after fork() with all signals blocked to its end.
///
/// It is the parent of all workers and, as a subreaper, the ancestor of all that they start. When
/// the launcher ends, for whatever reason, it kills every one of them and ends when none is left.
[[noreturn]] void run_keeper_process(KeeperProcessOptions options) noexcept;

}  // namespace lockstep
