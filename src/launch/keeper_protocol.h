#pragma once

#include <sys/types.h>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/subprocess.h"
#include "launch/kill_descendants.h"
#include "launch/message_channel.h"

namespace lockstep {

/// A worker to start.
///
/// It leads a session and a process group of its own, inherits standard input and umask, starts
/// with no signal blocked, and ignores none except SIGHUP where the launcher was started so.
struct WorkerSpec {
  std::vector<std::string>
      argv;  // argv[0] without a slash is looked up on the PATH of `environment`
  std::map<std::string, std::string> environment;  // all of it
  std::string working_directory;                   // empty: the launcher's
  int stdout_fd = -1;                              // -1: the launcher's; stays the caller's
  int stderr_fd = -1;
  std::string stdout_path;  // instead of stdout_fd: created or emptied, written in append mode
  std::string stderr_path;  // likewise; may be the same file
  std::vector<int> cpus;    // those it may run on; empty: as the launcher
};

/// The program runs.
struct WorkerStarted {
  std::uint64_t id = 0;
  pid_t pid = 0;  // also of its process group and session
};

/// There is no process with this id, nor will there be.
struct WorkerStartFailed {
  std::uint64_t id = 0;
  std::string reason;  // names the program, folder or file
  int error = 0;       // errno; 0 for a spec that cannot work
};

/// These come in the order in which workers ended.
struct WorkerExited {
  std::uint64_t id = 0;
  pid_t pid = 0;
  ExitStatus status;
  std::int64_t monotonic_ns = 0;  // CLOCK_MONOTONIC; later than the one before
};

/// No process is left of those that workers had started, nor a worker.
struct AllGone {
  std::uint64_t request = 0;
};

/// These have not ended although they were killed. Killing goes on; AllGone may still come.
struct StuckProcesses {
  std::uint64_t request = 0;
  std::vector<StuckProcess> processes;
};

/// The keeper has ended, and with it all workers. What they had started may run on, as descendants
/// of this process: kill_all_descendants() ends it. Nothing comes after this.
struct KeeperLost {
  std::string how;
};

using KeeperEvent = std::variant<WorkerStarted, WorkerStartFailed, WorkerExited, AllGone,
                                 StuckProcesses, KeeperLost>;

struct StartWorker {
  std::uint64_t id = 0;
  WorkerSpec spec;
};

struct SignalWorker {
  std::uint64_t id = 0;
  int number = 0;
};

struct KillLeftovers {
  std::uint64_t request = 0;
};

using KeeperCommand = std::variant<StartWorker, SignalWorker, KillLeftovers>;

/// The bytes of a message. Descriptors in it are left out: attached_fds() has them.
std::string encode(const KeeperCommand& command);
std::string encode(const KeeperEvent& event);  // all but KeeperLost

/// Descriptors to send along, in the order that decode_command() expects.
std::vector<int> attached_fds(const KeeperCommand& command);

/// Descriptors in the result belong to `message`.
KeeperCommand decode_command(const ChannelMessage& message);
KeeperEvent decode_event(const ChannelMessage& message);

}  // namespace lockstep
