// A node that cannot reach its coordinator: how long it waits, and what it says.
#include <algorithm>
#include <csignal>

#include "launch/agent.h"
#include "lockstep/error.h"

namespace lockstep {

Time Agent::apart_limit() const {
  return options_.apart_limit == Time(0) ? options_.terms.beat_limit : options_.apart_limit;
}

void Agent::note_reach(Reach reach) {
  in_vain_ = reach == Reach::nothing || (reach == Reach::refused && options_.nodes_start_together);
  if (!in_vain_) last_sign_ = now_;
}

// Where there was never a sign of the coordinator, what is wrong will not pass by itself.
std::optional<Time> Agent::time_left_in_vain() const {
  if (was_in_touch_ || !in_vain_ || options_.start_timeout == Time(0)) return std::nullopt;
  return options_.start_timeout - (now_ - last_sign_);
}

// Cut off, the node can only guess what the others do; they will take it for lost. So it stops its
// workers, and then waits for the coordinator, as long as somebody may start one again.
void Agent::lost_touch() {
  const Time apart = now_ - apart_since_;
  const bool had_epoch = membership_.epoch != 0;
  if (apart > apart_limit() && phase_ != NodePhase::idle && phase_ != NodePhase::stopping) {
    actions_.push_back(AgentSays{concat("lost the coordinator at ", options_.coordinator, " (",
                                        apart_reason_, "): stopping this node's workers")});
    begin_stop(SIGTERM);
  }
  if (done_ || ending_) return;
  const bool may_return =
      options_.coordinator_may_return &&
      (options_.terms.elastic() || options_.terms.max_restarts > 0 || options_.terms.min_world > 0);
  const Time limit = had_epoch && !may_return ? apart_limit() : options_.join_timeout;
  const auto left_in_vain = time_left_in_vain();
  const bool is_in_vain = left_in_vain && *left_in_vain < limit - apart;
  const Time left = is_in_vain ? *left_in_vain : limit - apart;
  if (left < Time(0)) {
    ending_ =
        Finish{.code = 1,
               .reason = concat(options_.self.host, had_epoch ? " has lost the" : " found no",
                                " coordinator at ", options_.coordinator, " for ",
                                whole_seconds(apart), " s: ", apart_reason_,
                                is_in_vain ? "; to wait longer give --start-timeout SECONDS" : ""),
               .failures = failures_,
               .stopped_ranks = {}};
    if (phase_ == NodePhase::idle) return finish(*ending_);
    if (phase_ != NodePhase::stopping) begin_stop(SIGTERM);
    return;
  }
  if (now_ >= next_status_) {
    next_status_ = now_ + options_.status_interval;
    actions_.push_back(AgentSays{concat("waiting for the coordinator at ", options_.coordinator,
                                        " for ", whole_seconds(apart), " s: ", apart_reason_,
                                        "; giving up in ", whole_seconds(left), " s")});
  }
}

}  // namespace lockstep
