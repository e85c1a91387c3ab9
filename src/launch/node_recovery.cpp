// What a node does with its workers when some of them are replaced.
#include <algorithm>

#include "core/rank_list.h"
#include "launch/node_shell.h"
#include "launch/placement.h"
#include "lockstep/error.h"

namespace lockstep {

void NodeShell::on_recovers(int slot, const WorkerRecovers& recovers) {
  perform(agent_->on_worker_recovers(
      local_rank_of(slot),
      {.epoch = recovers.epoch, .rank = slot, .step = recovers.step, .able = recovers.able},
      monotonic_now()));
  services_.events.write({.kind = "recovers",
                          .epoch = recovers.epoch,
                          .slot = slot,
                          .fields = {{"step", recovers.step}, {"able", recovers.able}}});
  fill_spares();
}

// Not before all workers of this node have begun to train, at the start and after a recovery: the
// processors are theirs until then, and a program that cannot be carried over needs no spare.
void NodeShell::fill_spares() {
  if (plan_.options.spares == 0 || agent_->phase() != NodePhase::running) return;
  for (int local_rank = 0; local_rank < plan_.workers; ++local_rank) {
    const int place = membership_.self.first_rank + local_rank;
    if (!membership_.is_in(place)) continue;
    const WorkerState* state = hub_.state(place);
    if (state == nullptr || !state->recovers || state->recovers->epoch != agent_->epoch()) return;
  }
  spares_.fill(membership_);
  watch_keeper();
}

std::optional<SlotPlace> NodeShell::place_of(pid_t pid) const {
  if (const auto place = workers_.place_of(pid)) return place;
  if (const auto spare = spares_.number_of(pid)) return SlotPlace{.spare = spare};
  return std::nullopt;
}

std::vector<int> NodeShell::places_of(const std::vector<int>& ranks) const {
  std::vector<int> places;
  for (const int rank : ranks) {
    if (const auto place = membership_.place_of(rank)) places.push_back(*place);
  }
  return places;
}

void NodeShell::on_rejected(int slot, const WorkerRejected& rejected) {
  // Ranks of a world that is no more may be others by now.
  if (rejected.epoch != 0 && rejected.epoch != membership_.epoch) return;
  const std::vector<int> places = places_of(rejected.ranks);
  services_.events.write(
      {.kind = "ranks_rejected",
       .epoch = agent_->epoch(),
       .slot = slot,
       .fields = {{"ranks", rank_numbers(places)}, {"reason", rejected.reason}}});
  perform(agent_->on_ranks_rejected({membership_.epoch, places, rejected.reason}, monotonic_now()));
}

// The heartbeat is up to a second old, so this is where it was heard of last.
std::string NodeShell::progress_of(int slot) const {
  const WorkerState* state = hub_.state(slot);
  if (state == nullptr || !state->recovers) return "";
  return concat("(last heard of at step ", std::max(state->heartbeat.step, state->recovers->step),
                ")");
}

void NodeShell::carry_out(const RevokeWorkers& revoke) {
  services_.events.write(
      {.kind = "revoked",
       .epoch = revoke.epoch,
       .slot = std::nullopt,
       .fields = {{"lost", rank_numbers(revoke.lost)}, {"reason", revoke.reason}}});
  const auto note_places = [&](const char* kind, const std::vector<int>& places) {
    for (const int place : places) {
      services_.events.write({.kind = kind, .epoch = revoke.epoch, .slot = place, .fields = {}});
    }
  };
  note_places("left_out", revoke.left_out);
  note_places("rejoins", revoke.rejoins);
  std::vector<int> lost_ranks;  // as those that live on know them
  for (const int place : revoke.lost) {
    if (membership_.is_in(place)) lost_ranks.push_back(membership_.rank_of(place));
  }
  const int first = membership_.self.first_rank;
  for (const int local_rank : revoke.survivors) {
    hub_.revoke(first + local_rank,
                {.epoch = revoke.epoch, .reason = revoke.reason, .lost_ranks = lost_ranks});
  }
  for (const int local_rank : revoke.killed) workers_.kill(local_rank);
}

// Those that live on. What they need is what a worker that is started finds in its environment.
void NodeShell::announce_world(const StartWorkers& start) {
  for (const auto& [id, worker] : workers_.running()) {
    if (worker.epoch == start.membership.epoch) {
      services_.events.write(
          {.kind = "replaced", .epoch = worker.epoch, .slot = worker.rank, .fields = {}});
      continue;
    }
    const Placement place = place_worker(plan_, start, worker.local_rank);
    hub_.announce(worker.rank, {.epoch = place.epoch,
                                .rank = place.rank,
                                .world_size = place.world_size,
                                .local_rank = place.local_rank,
                                .local_world_size = place.local_world_size,
                                .node_rank = place.group_rank,
                                .restart_count = place.restart_count,
                                .master_addr = place.master_addr,
                                .master_port = place.master_port,
                                .replaced_slots = start.replaced});
  }
}

void NodeShell::carry_out(const NoteRecovered& note) {
  const auto took = std::chrono::duration<double, std::milli>(note.recovered.since_loss);
  services_.events.write(
      {.kind = "recovered",
       .epoch = note.recovered.epoch,
       .slot = std::nullopt,
       .fields = {{"step", note.recovered.step}, {"ms_since_loss", took.count()}}});
}

}  // namespace lockstep
