#include "train/step_clock.h"

#include <algorithm>
#include <array>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {
namespace {

constexpr std::array kAllTimes = {&StepTimes::data,   &StepTimes::forward, &StepTimes::backward,
                                  &StepTimes::reduce, &StepTimes::update,  &StepTimes::total};

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
  before_ = sums_;
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

std::optional<StepTimes> StepClock::end_step() {
  if (!measures_) return std::nullopt;
  sums_.total += seconds(last_ - began_);
  ++steps_;
  measures_ = false;
  StepTimes step = sums_;
  for (const Phase phase : kAllTimes) step.*phase -= before_.*phase;
  return step;
}

std::optional<StepTimes> StepClock::take() {
  if (steps_ == 0) return std::nullopt;
  StepTimes means = std::exchange(sums_, {});
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  for (const Phase phase : kAllTimes) means.*phase /= steps;
  return means;
}

}  // namespace lockstep
