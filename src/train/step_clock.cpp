#include "train/step_clock.h"

#include <algorithm>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {
namespace {

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void StepClock::wait_for_device() const {
  if (device_.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
}

void StepClock::begin_step(bool logged) {
  measures_ = logged || device_.is_cpu();
  if (!measures_) return;
  wait_for_device();
  began_ = last_ = Clock::now();
}

void StepClock::mark(Phase phase) {
  if (!measures_) return;
  wait_for_device();
  const Clock::time_point now = Clock::now();
  sums_.*phase += seconds(now - std::exchange(last_, now));
}

void StepClock::move(Phase from, Phase to, std::chrono::nanoseconds part) {
  if (!measures_) return;
  const double moved = std::min(seconds(part), sums_.*from);
  sums_.*from -= moved;
  sums_.*to += moved;
}

void StepClock::end_step() {
  if (!measures_) return;
  sums_.total += seconds(last_ - began_);
  ++steps_;
  measures_ = false;
}

std::optional<StepTimes> StepClock::take() {
  if (steps_ == 0) return std::nullopt;
  StepTimes means = std::exchange(sums_, {});
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  for (const Phase phase : {&StepTimes::data, &StepTimes::forward, &StepTimes::backward,
                            &StepTimes::reduce, &StepTimes::update, &StepTimes::total}) {
    means.*phase /= steps;
  }
  return means;
}

}  // namespace lockstep
