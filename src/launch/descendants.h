#pragma once

#include <sys/types.h>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// A process as /proc shows it.
struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';               // as ps shows it: R, S, D, T, t, Z; of its main thread
  std::string name;               // at most 15 characters
  std::uint64_t start_ticks = 0;  // since boot; with the pid it names a process for good

  /// A zombie has ended and waits for its parent to take note.
  bool ended() const { return state == 'Z' || state == 'X'; }

  bool operator==(const ProcessInfo&) const = default;
};

/// Why a process does not end although it was killed: a thread waits in the kernel, uninterruptibly
/// (state D), as for a disk or a network file system that does not answer.
struct BlockedThread {
  pid_t tid = 0;
  std::string waits_in;  // the kernel's function; empty where the kernel does not tell
};

/// std::nullopt if there is no such process.
std::optional<ProcessInfo> read_process(pid_t pid, const std::string& proc = "/proc");

/// The first thread of the process in state D, if one is.
std::optional<BlockedThread> blocked_thread(pid_t pid, const std::string& proc = "/proc");

/// Children, their children and so on, parents before their children. A snapshot: while processes
/// start and end, some may be missing.
std::vector<ProcessInfo> descendants_of(pid_t pid, const std::string& proc = "/proc");

/// "4711 (python3)", and where it stands: ", blocked in the kernel (state D) in nfs_wait_bit".
std::string describe(const ProcessInfo& process, const std::optional<BlockedThread>& blocked);

}  // namespace lockstep
