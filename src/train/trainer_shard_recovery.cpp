// How TrainerCore goes on after ranks were replaced where each rank keeps a part, and others hold
// the same: docs/recovery.md, "Sharded runs".
#include <utility>

#include <ATen/core/grad_mode.h>

#include "comm/recovery.h"
#include "ddp/module_walk.h"
#include "train/carry_over.h"
#include "train/part_standing.h"
#include "train/trainer_core.h"

namespace lockstep {

// Whether ranks wait for each other before each update. The same on all of them: each is asked,
// because the launcher may not answer one of them.
bool TrainerCore::all_agree_to_updates() {
  if (!options_.shard || options_.shard->replicas < 2) return false;
  bool all = true;
  for (const nlohmann::json& each : world_.group().all_gather_json(can_recover(world_))) {
    all = all && each.get<bool>();
  }
  return all;
}

// Who comes out of it knows that all ranks have their gradients. So nobody is ever ahead of one
// that could not follow: a whole part cannot be left behind with all its holders.
void TrainerCore::agree_to_update(const StepArguments& arguments) {
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
  state_->optimizer().step(prepared.arguments);
}

TrainerCore::Takeover TrainerCore::take_over_parts() {
  ProcessGroup& group = world_.group();
  const int replicas = options_.shard->replicas;
  if (has_state_) share_out_again();  // with fewer ranks than parts it ends here
  task_.sharded()->join(world_);
  const PartStanding standing = compare_parts(group,
                                              {.has_state = has_state_ && !state_given_up_,
                                               .commits = commits_,
                                               .updates = updates_,
                                               .prepared = prepared_.has_value()},
                                              replicas);
  HandedState handed =
      hand_over(group, standing.values,
                {.offer =
                     [this] {
                       return HandedState{.state = state_->values(share_, world_.epoch()),
                                          .values = progress_values()};
                     },
                 .give_up = [](const StateOffer&) { return Snapshot(); }});
  const auto rank = static_cast<std::size_t>(group.rank());
  const bool takes_part = standing.takes[rank];
  // Part and values change together: up to the next collective nothing can come between.
  if (standing.applies[rank]) make_prepared_update();
  prepared_.reset();  // nobody has made the update: it is computed again
  if (!takes_part) {
    if (standing.values.takes(group.rank())) take_values(std::move(handed.state));
    adopt(handed.values);
  }
  const Standing holders = standing.of_holders(group.rank(), replicas);
  HandedState part;
  if (!holders.takers.empty()) {
    ProcessGroup holding = task_.sharded()->holders();
    part =
        hand_over(holding, holders,
                  {.offer = [this] { return HandedState{.state = state_->parts(), .values = {}}; },
                   .give_up = [this](const StateOffer& offer) { return give_up_state(offer); }});
  }
  if (takes_part) {
    handed.state.parts.merge(part.state.parts);
    take_state(std::move(handed.state), handed.values.at("data"));
    adopt(handed.values);
  }
  Takeover taken{.source = standing.values.source,
                 .takes = takes_part,
                 .bytes = part.bytes,
                 .like = standing.like};
  for (const int copy : holders.takers) {
    taken.takers.push_back(copy * (group.size() / replicas) +
                           group.rank() % (group.size() / replicas));
  }
  return taken;
}

}  // namespace lockstep
