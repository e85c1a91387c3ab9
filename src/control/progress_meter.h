#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/worker_messages.h"

namespace lockstep {

/// Knows how far a program is, and for how long it has been at work by itself: without a report,
/// and without waiting for others. That is what tells a rank that hangs from those that wait for
/// it.
///
/// A sign of progress is a report, and a wait that begins or ends. Waits are counted: collectives
/// that are under way, on whatever thread, and what else is not in the program's hands (a disk, the
/// launcher).
///
/// Thread-safe. A call costs a lock and a look at the clock.
class ProgressMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// Where the program is; phases are words that it uses again and again.
  void report(std::int64_t step, std::string_view phase, Clock::time_point now = Clock::now());

  /// `what` must live on: a literal.
  void wait_began(const char* what, Clock::time_point now = Clock::now());
  void wait_ended(int count = 1, Clock::time_point now = Clock::now());

  /// How one step's time was spent.
  void add_step(const StepWork& work);

  WorkerHeartbeat look(Clock::time_point now = Clock::now()) const;

 private:
  /// What has been seen of a phase that is over.
  struct Phase {
    std::string name;
    std::int64_t visits = 0;
    Clock::duration longest{0};  // at work by itself
  };

  void sign_of_progress(Clock::time_point now);

  mutable std::mutex mutex_;
  std::int64_t step_ = 0;
  std::vector<Phase> phases_;
  std::size_t current_ = 0;  // of the phases; there is none before the first report
  std::optional<Clock::time_point> reported_at_;
  Clock::time_point since_;  // the last sign of progress
  int waits_ = 0;
  const char* what_ = "";  // the latest of them
  StepWork work_;          // of all steps
};

/// Waits as long as it lives. The meter may be null.
class MeteredWait {
 public:
  MeteredWait(ProgressMeter* meter, const char* what) : meter_(meter) {
    if (meter_ != nullptr) meter_->wait_began(what);
  }
  ~MeteredWait() {
    if (meter_ != nullptr) meter_->wait_ended();
  }
  MeteredWait(const MeteredWait&) = delete;
  MeteredWait& operator=(const MeteredWait&) = delete;

 private:
  ProgressMeter* meter_;
};

}  // namespace lockstep
