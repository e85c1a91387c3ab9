// A coordinator whose records are kept elsewhere, in an etcd that stalls: as CoordinatorShell does,
// it tells nobody of a new epoch before the epoch's record is kept.
#include <utility>

#include "sim/machine.h"

namespace lockstep::sim {
namespace {

// Signs of life are true whatever is decided.
bool waits_for_record(const CoordinatorAction& action) {
  const auto* to = std::get_if<SendTo>(&action);
  if (to == nullptr) return !std::holds_alternative<Say>(action);
  return !std::holds_alternative<Beat>(to->message) && !std::holds_alternative<Status>(to->message);
}

}  // namespace

void Machine::hold_new_epoch() {
  const bool is_over = coordinator_->phase() == Coordinator::Phase::finished;
  if (std::exchange(recorded_epoch_, coordinator_->epoch()) != coordinator_->epoch() && !is_over) {
    const Time now = shared_.queue.now();
    for (const Stall& stall : shared_.scenario.stalls) {
      if (now < stall.from || now >= stall.until) continue;
      ++shared_.held_epochs;
      is_held_ = true;
      shared_.queue.at(stall.until, [this, life = life_] {
        if (life == life_ && coordinator_) release_held();
      });
    }
  }
  if (is_over) release_held();
}

void Machine::release_held() {
  is_held_ = false;
  for (const CoordinatorAction& action : std::exchange(held_, {})) carry_out(action);
}

void Machine::carry_out_when_kept(const CoordinatorAction& action) {
  if (is_held_ && waits_for_record(action)) return held_.push_back(action);
  carry_out(action);
}

}  // namespace lockstep::sim
