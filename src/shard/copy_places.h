#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Which rank keeps the copy of which part (ShardedOptions::peer_copies). Rank r has part r.
struct CopyPlaces {
  int ranks = 2;
  int distance = 1;  // from a rank back to the one that keeps the copy of its part

  int keeper_of(int part) const { return (part + ranks - distance) % ranks; }
  int copied_at(int rank) const { return (rank + distance) % ranks; }

  /// Whether no copy is on the machine of its part, so that any one machine may be lost. `machines`
  /// has the name of each rank's.
  bool are_apart(const std::vector<std::string>& machines) const;
};

/// The shortest distance at which copies are apart: of ranks in equal blocks, as many as a machine
/// has. 1 where there is none, as on one machine, or where one has more than half of the ranks.
int distance_apart(const std::vector<std::string>& machines);

}  // namespace lockstep
