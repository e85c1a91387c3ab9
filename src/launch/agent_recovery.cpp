// What an agent does when some workers are replaced and the others live on.
#include <algorithm>
#include <iterator>
#include <set>

#include "launch/agent.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

bool holds(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

}  // namespace

// From the epoch that runs, or from one that was being formed when more ranks were lost.
void Agent::reform(const Prepare& prepare) {
  if (prepare.membership.epoch <= membership_.epoch) return;
  if (phase_ == NodePhase::idle) return begin_among_others(prepare);
  // Who stops its workers says so by itself.
  if (!has_workers() && phase_ != NodePhase::succeeded) return;
  RevokeWorkers revoke = revocation(prepare);
  membership_ = prepare.membership;
  phase_ = NodePhase::reforming;
  carries_over_ = true;
  replaced_ = prepare.replaced;
  store_port_ = 0;
  ready_ = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const int local_rank = static_cast<int>(i);
    const int place = rank_of(local_rank);
    slot.is_replaced = holds(replaced_, place) || !membership_.is_in(place);
    slot.recovers.reset();
    slot.goes_on = false;
    if (slot.is_replaced) slot.has_state = false;
    if (slot.state != SlotState::running) continue;
    (slot.is_replaced ? revoke.killed : revoke.survivors).push_back(local_rank);
  }
  actions_.push_back(std::move(revoke));
  refuse_missing();
  // A failure that the coordinator did not know of when it chose whom to replace is one of this
  // epoch as well.
  std::erase_if(failures_, [&](const WorkerFailed& failed) {
    return holds(replaced_, failed.rank) || !membership_.is_in(failed.rank);
  });
  for (WorkerFailed& failed : failures_) {
    failed.epoch = membership_.epoch;
    failed.age = now_ - failed_at_.at(failed.rank);
    send(failed);
  }
  if (opens_store()) return actions_.push_back(OpenStore{membership_});
  ready_if_prepared();
}

// The workers of another node, which was lost, or of this one before it was cut off, live on
// elsewhere; all of this node's are new.
void Agent::begin_among_others(const Prepare& prepare) {
  const NodePlace& self = prepare.membership.self;
  if (self.workers != options_.self.workers) return;
  for (int i = 0; i < self.workers; ++i) {
    if (!holds(prepare.replaced, self.first_rank + i)) return;
  }
  membership_ = prepare.membership;
  phase_ = NodePhase::reforming;
  carries_over_ = begins_ = true;
  replaced_ = prepare.replaced;
  failures_.clear();
  failed_at_.clear();
  resume_ = ready_ = false;
  store_port_ = 0;
  slots_.assign(static_cast<std::size_t>(self.workers), Slot{.is_replaced = true});
  if (opens_store()) return actions_.push_back(OpenStore{membership_});
  ready_if_prepared();
}

RevokeWorkers Agent::revocation(const Prepare& prepare) const {
  RevokeWorkers revoke{.epoch = prepare.membership.epoch,
                       .reason = prepare.reason,
                       .lost = {},
                       .left_out = {},
                       .rejoins = {},
                       .survivors = {},
                       .killed = {}};
  const std::vector<int>& before = membership_.left_out;
  const std::vector<int>& now = prepare.membership.left_out;
  std::ranges::set_difference(now, before, std::back_inserter(revoke.left_out));
  std::ranges::set_difference(before, now, std::back_inserter(revoke.rejoins));
  std::set<int> lost(revoke.left_out.begin(), revoke.left_out.end());
  for (const int place : prepare.replaced) {
    if (membership_.is_in(place)) lost.insert(place);
  }
  revoke.lost.assign(lost.begin(), lost.end());
  return revoke;
}

// It cannot be carried over, or left the epoch before when that was over for it, whatever it was
// told since: the others would wait for it for ever.
bool Agent::is_missing(const Slot& slot) const {
  if (!has_workers() || !carries_over_ || slot.goes_on) return false;
  if (slot.state == SlotState::succeeded) return true;
  const bool is_new = slot.started == membership_.epoch || slot.is_replaced;
  return slot.state == SlotState::running && !slot.has_state && !is_new;
}

// When it is found out, and again with every connection: what was said may be lost with one.
void Agent::refuse_missing() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!is_missing(slots_[i])) continue;
    const int rank = rank_of(static_cast<int>(i));
    const bool has_ended = slots_[i].state == SlotState::succeeded;
    return send(CannotReform{
        membership_.epoch,
        concat("rank ", rank, has_ended ? " has already ended well" : " cannot be carried over")});
  }
}

void Agent::ready_if_prepared() {
  if (ready_ || (opens_store() && store_port_ == 0)) return;
  const bool old_ones_left = std::ranges::any_of(slots_, [](const Slot& slot) {
    return slot.is_replaced && slot.state == SlotState::running;
  });
  if (old_ones_left) return;
  ready_ = true;
  send(Ready{membership_.epoch, store_port_});
}

void Agent::continue_workers(const Start& start) {
  if (start.epoch != membership_.epoch || !ready_) return;
  phase_ = NodePhase::running;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const bool is_in = membership_.is_in(rank_of(static_cast<int>(i)));
    if (!is_in) slot = Slot{.state = SlotState::left_out};
    if (is_in && slot.is_replaced) {
      slot = Slot{.state = SlotState::running, .started = membership_.epoch};
    }
  }
  start_workers(start);
}

Agent::Actions Agent::on_worker_recovers(int local_rank, const RankRecovers& recovers, Time now) {
  now_ = now;
  const auto index = static_cast<std::size_t>(local_rank);
  if (!has_workers() || index >= slots_.size()) return take();
  Slot& slot = slots_[index];
  if (slot.state != SlotState::running || slot.is_replaced) return take();
  if (!recovers.able) {
    withdraw(local_rank);
    return take();
  }
  // Said before the worker heard that its world is revoked: it will say it again.
  if (recovers.epoch != membership_.epoch) return take();
  slot.has_state = slot.goes_on = true;
  slot.recovers = recovers;
  slot.recovers->rank = rank_of(local_rank);
  send(*slot.recovers);
  return take();
}

Agent::Actions Agent::on_worker_leaving(int local_rank, Time now) {
  now_ = now;
  const auto index = static_cast<std::size_t>(local_rank);
  if (has_workers() && index < slots_.size() && slots_[index].has_state) withdraw(local_rank);
  return take();
}

// It cannot be carried over any more; if that is just what is being done, it cannot be done.
void Agent::withdraw(int local_rank) {
  Slot& slot = slots_[static_cast<std::size_t>(local_rank)];
  slot.has_state = false;
  slot.recovers.reset();
  if (is_missing(slot)) return refuse_missing();
  send(RankRecovers{
      .epoch = membership_.epoch, .rank = rank_of(local_rank), .step = 0, .able = false});
}

Agent::Actions Agent::on_ranks_rejected(const RanksRejected& rejected, Time now) {
  now_ = now;
  if (phase_ == NodePhase::running && rejected.epoch == membership_.epoch) send(rejected);
  return take();
}

void Agent::handle(const Recovered& recovered) {
  // The last steps may be over here before the word comes that all go on.
  const bool ran = phase_ == NodePhase::running || phase_ == NodePhase::succeeded;
  if (!ran || recovered.epoch != membership_.epoch) return;
  actions_.emplace_back(NoteRecovered{recovered});
}

}  // namespace lockstep
