#include "control/progress_meter.h"

#include <algorithm>

namespace lockstep {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr std::size_t kMaxPhaseBytes = 256;
// A program that puts numbers into its phases must not fill the memory; nothing is learnt of it.
constexpr std::size_t kMostPhases = 64;

}  // namespace

// What has passed belongs to the phase, unless it was spent waiting.
void ProgressMeter::sign_of_progress(Clock::time_point now) {
  if (waits_ == 0 && reported_at_) {
    Phase& phase = phases_[current_];
    phase.longest = std::max(phase.longest, now - since_);
  }
  since_ = now;
}

void ProgressMeter::report(std::int64_t step, std::string_view phase, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  sign_of_progress(now);
  if (reported_at_) ++phases_[current_].visits;
  step_ = step;
  reported_at_ = now;
  phase = phase.substr(0, kMaxPhaseBytes);
  if (!phases_.empty() && phases_[current_].name == phase) return;
  const auto found = std::ranges::find(phases_, phase, &Phase::name);
  current_ = static_cast<std::size_t>(found - phases_.begin());
  if (found != phases_.end()) return;
  if (phases_.size() < kMostPhases) {
    phases_.push_back({.name = std::string(phase)});
    return;
  }
  current_ = kMostPhases - 1;
  phases_[current_] = {.name = std::string(phase)};
}

void ProgressMeter::wait_began(const char* what, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  sign_of_progress(now);
  ++waits_;
  what_ = what;
}

void ProgressMeter::wait_ended(int count, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  sign_of_progress(now);
  waits_ -= count;
}

void ProgressMeter::add_step(const StepWork& work) {
  const std::lock_guard lock(mutex_);
  work_.steps += work.steps;
  work_.data += work.data;
  work_.compute += work.compute;
  work_.waiting += work.waiting;
}

WorkerHeartbeat ProgressMeter::look(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  WorkerHeartbeat beat{.step = step_, .work = work_};
  if (waits_ > 0) beat.waits_for = what_;
  if (!reported_at_) return beat;
  const Phase& phase = phases_[current_];
  beat.phase = phase.name;
  beat.age = duration_cast<milliseconds>(now - *reported_at_);
  if (waits_ == 0) beat.alone = duration_cast<milliseconds>(now - since_);
  beat.longest_alone = duration_cast<milliseconds>(phase.longest);
  beat.visits = phase.visits;
  return beat;
}

}  // namespace lockstep
