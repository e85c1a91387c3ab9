#include "shard/copy_places.h"

namespace lockstep {

bool CopyPlaces::are_apart(const std::vector<std::string>& machines) const {
  for (int part = 0; part < ranks; ++part) {
    if (machines[part] == machines[keeper_of(part)]) return false;
  }
  return true;
}

int distance_apart(const std::vector<std::string>& machines) {
  const auto ranks = static_cast<int>(machines.size());
  for (int distance = 1; distance < ranks; ++distance) {
    if (CopyPlaces{.ranks = ranks, .distance = distance}.are_apart(machines)) return distance;
  }
  return 1;
}

}  // namespace lockstep
