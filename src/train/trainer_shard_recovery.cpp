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
          .peer_copies = task_.sharded()->keeps_copy()};
}

// Whether ranks wait for each other before each update. The same on all of them: each is asked,
// because the launcher may not answer one of them.
bool TrainerCore::all_agree_to_updates() {
  if (!options_.shard || !has_parts_elsewhere()) return false;
  const bool recovers = can_recover(world_) && obstacle_to_recovery().empty();
  bool all = true;
  for (const nlohmann::json& each : world_.group().all_gather_json(recovers)) {
    all = all && each.get<bool>();
  }
  return all;
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

// Who holds it as its own takes and gives all that it has of the model; to a copy goes the part.
StateHolder TrainerCore::part_holder(int part, bool to_owner) {
  const bool is_own = part_places().part_of(world_.rank()) == part;
  return {.offer =
              [this, is_own, to_owner] {
                const ShardPart which = is_own ? ShardPart::own : ShardPart::copied;
                return HandedState{.state = state_->parts({.part = which, .alone = !to_owner}),
                                   .values = {}};
              },
          .give_up =
              [this, is_own](const StateOffer& offer) {
                return is_own ? give_up_state(offer) : give_up_copy(offer);
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
    const std::vector<int> holders = places.holders(part);
    all.push_back({.source = part, .givers = {part}, .takers = {holders.back()}});
  }
  const std::vector<HandedState> handed = hand_over_each(
      world_.group(), all, [this](int part) { return part_holder(part, /*to_owner=*/false); });
  for (int part = 0; part < places.parts(); ++part) {
    if (all[part].takes(world_.rank())) state_->restore_copy(handed[part].state);
  }
  state_given_up_ = false;
}

TrainerCore::Takeover TrainerCore::take_over_parts() {
  ProcessGroup& group = world_.group();
  if (has_state_) share_out_again();  // with fewer ranks than parts it ends here
  task_.sharded()->join(world_);
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
  const auto takers_own_it = [&](int part) {
    const std::vector<int>& takers = standing.parts[part].takers;
    return !takers.empty() && places.part_of(takers.front()) == part;
  };
  std::vector<HandedState> parts = hand_over_each(
      group, standing.parts, [&](int part) { return part_holder(part, takers_own_it(part)); });
  for (int part = 0; part < places.parts(); ++part) {
    const Standing& holders = standing.parts[part];
    taken.part_sources.push_back(holders.source);
    if (parts[part].bytes > 0) {
      taken.bytes += parts[part].bytes;
      for (const int taker : holders.takers) {
        if (std::ranges::count(taken.takers, taker) == 0) taken.takers.push_back(taker);
      }
    }
    if (!holders.takes(rank)) continue;
    if (places.part_of(rank) == part) {
      handed.state.parts.merge(parts[part].state.parts);
    } else {
      state_->restore_copy(parts[part].state);
    }
  }
  if (taken.takes) {
    take_state(std::move(handed.state), handed.values.at("data"));
    adopt(handed.values);
  }
  return taken;
}

}  // namespace lockstep
