#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/process_group.h"
#include "lockstep/sharded.h"
#include "shard/copy_places.h"
#include "train/carry_over.h"

namespace lockstep {

/// Which ranks hold which part of a model.
struct PartPlaces {
  int ranks = 1;
  int replicas = 1;       // ShardedOptions's
  int copy_distance = 0;  // ShardedEngine's

  int parts() const { return ranks / replicas; }
  int part_of(int rank) const { return rank % parts(); }
  bool has_copies() const { return copy_distance != 0; }
  CopyPlaces copies() const { return {.ranks = ranks, .distance = copy_distance}; }
  /// For one of its holders.
  ShardPart held_as(int rank, int part) const {
    return part_of(rank) == part ? ShardPart::own : ShardPart::copied;
  }
  /// The ranks whose part it is, and last the one that keeps a copy of it.
  std::vector<int> holders(int part) const;
};

/// What a rank of a sharded run has when ranks were replaced.
struct PartHolding {
  bool has_state = false;
  std::int64_t commits = 0;  // of all kinds
  std::int64_t updates = 0;  // of what it holds, by the optimizer
  bool prepared = false;     // it has all that the next update of it needs
};

/// Who has which part, and what each rank does so that all stand where the furthest stands.
///
/// All ranks agree before each update (docs/recovery.md). So where one has made an update, every
/// other one that has a state has made it, too, or is prepared for it.
struct PartStanding {
  Standing values;              // of what is the same on all ranks
  std::vector<bool> applies;    // ranks that make the update for which they are prepared
  std::vector<bool> takes;      // ranks that take all that they hold from others
  std::vector<Standing> parts;  // of the holders of each part
};

/// Throws Error when no rank has a state, or nobody a part that is to be taken.
PartStanding stand_in_parts(const std::vector<PartHolding>& all, const PartPlaces& places);

/// Collective.
PartStanding compare_parts(ProcessGroup& group, const PartHolding& mine, const PartPlaces& places);

}  // namespace lockstep
