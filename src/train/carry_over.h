#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/process_group.h"
#include "lockstep/snapshot.h"
#include "lockstep/world.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// What Trainer and recoverable() have in common when ranks were replaced: docs/recovery.md.

/// Called with a failure at hand: whether it comes from ranks that the launcher replaces. Where a
/// connection is broken it waits for the launcher's word, unless `asked_to_stop` says that there is
/// nothing to wait for.
bool ranks_were_lost(World& world, const std::function<bool()>& asked_to_stop);

/// Who has which state.
struct Standing {
  int source = -1;          // the lowest of those that are furthest
  std::vector<int> takers;  // those without state, or behind

  bool takes(int rank) const;
};

/// Collective. How many commits a rank has done, or nothing while it has no state. Throws Error
/// when no rank has one.
Standing compare_commits(ProcessGroup& group, std::optional<std::int64_t> commits);

/// A state, and values beside it.
struct HandedState {
  Snapshot state;  // empty where it is not taken
  nlohmann::json values;
  std::size_t bytes = 0;  // that the source has sent to each taker
};

/// Collective. `offer` is called in the source; its state goes to the takers, its values to all.
HandedState hand_over(ProcessGroup& group, const Standing& standing,
                      const std::function<HandedState()>& offer);

/// Whether a SyncBatchNorm communicates in a group of its own, which nobody would form again.
bool has_group_of_its_own(const torch::nn::Module& module, const ProcessGroup& group);

/// Lets every SyncBatchNorm communicate in the world's group as it is now.
void join_group(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace lockstep
