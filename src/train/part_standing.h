#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/process_group.h"
#include "train/carry_over.h"

namespace lockstep {

/// What a rank of a sharded run has when ranks were replaced.
struct PartHolding {
  bool has_state = false;
  std::int64_t commits = 0;  // of all kinds
  std::int64_t updates = 0;  // of its part, by the optimizer
  bool prepared = false;     // it has all that the next update needs
};

/// Who has which part, and what each rank does so that all stand where the furthest stands.
///
/// All ranks agree before each update (docs/recovery.md). So where one has made an update, every
/// other one that has a state has made it, too, or is prepared for it.
struct PartStanding {
  Standing values;            // of what is the same on all ranks
  std::vector<bool> applies;  // ranks that make the update for which they are prepared
  std::vector<bool> takes;    // ranks that take their part from another holder
  std::vector<int> like;      // for each rank the lowest holder of the same part that gives it

  /// That of one rank among the holders of its part, whose numbers are those of the copies.
  Standing of_holders(int rank, int replicas) const;
};

/// Throws Error when no rank has a state, or nobody a part that is to be taken.
PartStanding stand_in_parts(const std::vector<PartHolding>& all, int replicas);

/// Collective.
PartStanding compare_parts(ProcessGroup& group, const PartHolding& mine, int replicas);

}  // namespace lockstep
