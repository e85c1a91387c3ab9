#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/store.h"
#include "lockstep/world.h"

namespace lockstep::testing {

/// Until all ranks but those that were killed have come here. One that ends before the others have
/// looked who is gone would be counted among the dead.
inline void await_survivors(World& world, const std::vector<int>& killed) {
  std::vector<std::string> looked;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    if (std::ranges::find(killed, rank) == killed.end()) looked.push_back(concat("looked_", rank));
  }
  world.store().set(concat("looked_", world.rank()), "1");
  world.store().wait(looked, std::chrono::minutes(1));
}

}  // namespace lockstep::testing
