// How TrainerCore goes on after ranks were replaced where each rank keeps a part, and others hold
// the same: docs/recovery.md, "Sharded runs".
#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "comm/recovery.h"
#include "ddp/module_walk.h"
#include "train/carry_over.h"
#include "train/part_standing.h"
#include "train/state_transfer.h"
#include "train/trainer_core.h"

namespace lockstep {

bool TrainerCore::has_parts_elsewhere() const {
  return options_.shard->replicas > 1 || options_.shard->peer_copies;
}

PartPlaces TrainerCore::part_places() const {
  return {.ranks = world_.world_size(),
          .replicas = options_.shard->replicas,
          .copy_distance = task_.sharded()->copy_distance()};
}

// Who comes out of it knows that all ranks have their gradients. So nobody is ever ahead of one
// that could not follow: a whole part cannot be left behind with all its holders.
void TrainerCore::agree_to_update(const StepArguments& arguments) {
  // First: who is prepared has all that the updates of its own part and of the copy need.
  if (task_.sharded()->keeps_copy()) task_.sharded()->exchange_copy_gradients();
  PreparedUpdate& prepared = prepared_.emplace();
  prepared.arguments = arguments;
  for (const WalkedTensor& each : walk_buffers(*module_, {})) {
    prepared.buffers.push_back(each.tensor.detach().clone());
  }
  world_.barrier();
}

// The gradients are still with the parts, in the state in which the others have used theirs.
void TrainerCore::make_prepared_update() {
  const at::NoGradGuard no_grad;
  const PreparedUpdate prepared = *std::exchange(prepared_, std::nullopt);
  std::size_t next = 0;
  for (const WalkedTensor& each : walk_buffers(*module_, {})) {
    each.tensor.detach().copy_(prepared.buffers.at(next++));
  }
  state_->update(prepared.arguments);
}

// Of what this rank holds of a part, as its own or as a copy.
StateHolder TrainerCore::part_holder(const HeldParts& held) {
  return {.offer = [this, held] { return HandedState{.state = state_->parts(held), .values = {}}; },
          .give_up =
              [this, held](const StateOffer& offer) {
                return held.part == ShardPart::own ? give_up_state(offer) : give_up_copy(offer);
              }};
}

// A rank that takes its copy has lost it, or never had one: nothing is kept.
Snapshot TrainerCore::give_up_copy(const StateOffer& offer) {
  make_room(*state_->copy_optimizer(), offer.part("optimizer"));
  state_given_up_ = true;
  return state_->parts({.part = ShardPart::copied, .alone = true});
}

// At the start, when each rank has its part.
void TrainerCore::make_copies() {
  if (task_.sharded() == nullptr || !task_.sharded()->keeps_copy()) return;
  const PartPlaces places = part_places();
  std::vector<Standing> all;
  for (int part = 0; part < places.parts(); ++part) {
    all.push_back({.source = part, .givers = {part}, .takers = {places.copies().keeper_of(part)}});
  }
  const std::vector<HandedState> handed = hand_over_each(world_.group(), all, [&](int part) {
    return part_holder({.part = places.held_as(world_.rank(), part), .alone = true});
  });
  for (int part = 0; part < places.parts(); ++part) {
    if (all[part].takes(world_.rank())) state_->restore_copy(handed[part].state);
  }
  state_given_up_ = false;
}

// Who keeps whose copy follows from the machines that the ranks were on when the run began. Those
// that have been there since then tell the new ones, which may be on others: what is copied where
// must not change.
void TrainerCore::join_copies() {
  if (!options_.shard->peer_copies) return;
  ShardedEngine& sharded = *task_.sharded();
  int distance = 0;
  for (const nlohmann::json& each : world_.group().all_gather_json(sharded.copy_distance())) {
    distance = std::max(distance, each.get<int>());
  }
  if (sharded.keeps_copy() || distance == 0) return;
  sharded.keep_copy(distance);
  state_->make_copy_optimizer();
}

TrainerCore::Takeover TrainerCore::take_over_parts() {
  ProcessGroup& group = world_.group();
  if (has_state_) share_out_again();  // with fewer ranks than parts it ends here
  task_.sharded()->join(world_);
  join_copies();
  const PartPlaces places = part_places();
  const PartStanding standing = compare_parts(group,
                                              {.has_state = has_state_ && !state_given_up_,
                                               .commits = commits_,
                                               .updates = updates_,
                                               .prepared = prepared_.has_value()},
                                              places);
  HandedState handed =
      hand_over(group, standing.values,
                {.offer =
                     [this] {
                       return HandedState{.state = state_->values(share_, world_.epoch()),
                                          .values = progress_values()};
                     },
                 .give_up = [](const StateOffer&) { return Snapshot(); }});
  const int rank = group.rank();
  Takeover taken{.source = standing.values.source, .takes = standing.takes[rank]};
  // Part and values change together: up to the next collective nothing can come between.
  if (standing.applies[rank]) make_prepared_update();
  prepared_.reset();  // nobody has made the update: it is computed again
  if (!taken.takes) {
    if (standing.values.takes(rank)) take_values(std::move(handed.state));
    adopt(handed.values);
  }
  // Who takes it as its own takes all that a rank has of the model; to a copy goes the part alone.
  const auto goes_to_copy = [&](int part) {
    const std::vector<int>& takers = standing.parts[part].takers;
    return !takers.empty() && places.held_as(takers.front(), part) == ShardPart::copied;
  };
  std::vector<HandedState> parts = hand_over_each(group, standing.parts, [&](int part) {
    return part_holder({.part = places.held_as(rank, part), .alone = goes_to_copy(part)});
  });
  for (int part = 0; part < places.parts(); ++part) {
    const Standing& holders = standing.parts[part];
    taken.part_sources.push_back(holders.source);
    if (parts[part].bytes > 0) {
      taken.gifts.push_back({concat(goes_to_copy(part) ? "a copy of part " : "part ", part),
                             holders.takers, parts[part].bytes});
    }
    if (!holders.takes(rank)) continue;
    if (places.held_as(rank, part) == ShardPart::own) {
      handed.state.parts.merge(parts[part].state.parts);
    } else {
      state_->restore_copy(parts[part].state);
    }
  }
  if (taken.takes) {
    take_state(std::move(handed.state), handed.values);
    adopt(handed.values);
  }
  return taken;
}

}  // namespace lockstep
