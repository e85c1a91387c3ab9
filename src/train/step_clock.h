#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <c10/core/Device.h>

#include "lockstep/callback.h"

namespace lockstep {

/// Measures where the time of steps goes. Reading a clock costs nothing beside a step on a CPU; a
/// GPU has to be waited for, so there only some steps are measured.
class StepClock {
 public:
  using Phase = double StepTimes::*;

  explicit StepClock(c10::Device device) : device_(device) {}

  /// `logged`: the step will be reported.
  void begin_step(bool logged);
  /// What has passed since the last call belongs to this phase.
  void mark(Phase phase);
  /// Of what was marked last, this much belongs to another phase.
  void move(Phase from, Phase to, std::chrono::nanoseconds part);
  /// What the step has taken, where it was measured.
  std::optional<StepTimes> end_step();

  /// Means over the steps since the last call.
  std::optional<StepTimes> take();

 private:
  using Clock = std::chrono::steady_clock;
  void wait_for_device() const;

  c10::Device device_;
  bool measures_ = false;  // the step under way
  Clock::time_point began_, last_;
  StepTimes sums_;
  StepTimes before_;  // the step under way
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
