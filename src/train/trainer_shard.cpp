// What TrainerCore does differently where each rank keeps a part of the model.
#include <algorithm>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "shard/part_copy.h"
#include "train/broadcast_module.h"
#include "train/trainer_core.h"

namespace lockstep {

void TrainerCore::check_shard() const {
  if (!options_.shard) return;
  if (options_.snapshots.per_node) {
    throw InvalidArgument(
        "Trainer: every rank of a sharded run saves its part into one directory that all of them "
        "see; leave out snapshots.per_node");
  }
  if (!options_.ddp.ignored.empty()) {
    throw InvalidArgument("Trainer: ddp.ignored has no meaning with shard");
  }
  check_peer_copies(*options_.shard, world_.world_size());
  if (world_.joins() && !has_parts_elsewhere()) {
    throw InvalidArgument("Trainer: a process cannot take the place of one of a sharded run");
  }
}

// A deferred module has nothing to move: its parts are made where they belong.
bool TrainerCore::is_deferred() const {
  return std::ranges::any_of(module_->parameters(),
                             [](const at::Tensor& parameter) { return parameter.is_meta(); });
}

// Before anything copies the weights: all ranks begin with those of rank 0.
void TrainerCore::spread_model() {
  const bool deferred = is_deferred();
  if (deferred && !options_.shard) {
    throw InvalidArgument(
        "Trainer: the model is deferred, which is for shard, and that is not set");
  }
  if (!world_.joins() && !deferred) broadcast_module(world_.group(), *module_);
  if (!options_.shard) return;
  ShardedOptions shard = *options_.shard;
  shard.init_sync = deferred && !world_.joins();  // otherwise just done, or not asked for
  shard.device = world_.device();
  shard.peer_copies = shard.peer_copies && agrees_to_updates_;
  task_.shard(world_, shard);
}

std::string TrainerCore::who_has_a_dead_ranks_part() const {
  const PartPlaces places = part_places();
  if (places.has_copies()) {
    const bool apart = places.copies().are_apart(machines_of(world_.group()));
    return concat(
        "lockstep: a rank that dies is replaced in place: a copy of its part is on another ",
        apart ? "machine" : "rank", ", as rank 0's is on rank ", places.copies().keeper_of(0));
  }
  const int parts = places.parts();
  return concat("lockstep: a rank that dies is replaced in place: its part is also on ",
                options_.shard->replicas - 1, " other rank(s), as rank 0's is on rank ", parts);
}

std::optional<Snapshot> TrainerCore::find_snapshot() {
  if (!snapshots_ || !options_.snapshots.resume) return std::nullopt;
  if (const ShardedEngine* sharded = task_.sharded()) {
    return snapshots_->load_newest(sharded->ranges());
  }
  return snapshots_->load_newest();
}

}  // namespace lockstep
