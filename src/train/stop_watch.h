#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>

namespace lockstep {

class World;

/// Why a run is to end before its work is done. Ordered: of several the highest counts.
enum class StopCause { none = 0, time_limit = 1, launcher = 2, signal = 3 };

/// Notices that this process is asked to stop: SIGTERM or SIGUSR1 (what clusters send before they
/// take a node away), Ctrl-C, a request of the launcher, a limit of time.
///
/// While it lives, the signals do not end the process, but for a second Ctrl-C. A handler that the
/// program installed itself is left alone. At most one at a time.
class StopWatch {
 public:
  struct Options {
    std::optional<std::chrono::milliseconds> time_limit;
    bool heeds_interrupt = false;  // SIGINT, too: there is something to save
  };

  StopWatch(const World& world, const Options& options);
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;
  ~StopWatch();

  StopCause cause() const;

  /// "SIGTERM", "the launcher's request", "the time limit".
  std::string what() const;

 private:
  const World& world_;
  std::optional<std::chrono::steady_clock::time_point> end_;
  struct Replaced {
    int number = 0;
    bool installed = false;
    struct sigaction before = {};
  };
  std::array<Replaced, 3> replaced_;
};

}  // namespace lockstep
