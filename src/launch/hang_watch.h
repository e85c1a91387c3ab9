#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "control/worker_messages.h"

namespace lockstep {

/// Finds a worker whose program stands still although its control thread speaks: an endless loop, a
/// lock that nobody gives back.
///
/// When one rank stands still all others wait for it, so that their steps do not end either. But
/// they wait in a collective, and say so; the one that does not is at work by itself ("alone") for
/// longer than it ever was. How long that may take is learnt from all workers of the node, for each
/// phase of the program by itself: docs/recovery.md has the rule.
///
/// Needs no clock: workers say how long. Of what they say, only what they said while they were
/// heard regularly counts, so that a machine that stood still as a whole accuses nobody.
class HangWatch {
 public:
  /// What --hang-timeout says.
  explicit HangWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  void on_heartbeat(int rank, const WorkerHeartbeat& beat);

  /// Another process has this rank now.
  void forget(int rank) { workers_.erase(rank); }

  struct Finding {
    std::int64_t step = 0;
    std::string phase;
    std::chrono::milliseconds alone{0};
    std::chrono::milliseconds limit{0};

    bool operator==(const Finding&) const = default;
  };

  /// Whether this worker stands still, by its last heartbeat.
  std::optional<Finding> judge(int rank) const;

 private:
  struct Worker {
    WorkerHeartbeat beat;                    // the last one
    std::chrono::milliseconds witnessed{0};  // of the time that it is alone
  };

  /// What all workers of the node have seen of a phase.
  struct Learnt {
    std::int64_t visits = 0;
    std::chrono::milliseconds longest{0};
  };

  std::optional<std::chrono::milliseconds> limit_of(const std::string& phase) const;

  std::chrono::milliseconds timeout_;
  std::map<int, Worker> workers_;
  std::map<std::string, Learnt, std::less<>> phases_;
};

}  // namespace lockstep
