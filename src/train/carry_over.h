#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
  int source = -1;          // the first of those that are furthest
  std::vector<int> givers;  // all of those
  std::vector<int> takers;  // those without state, or behind

  bool takes(int rank) const;
  bool concerns(int rank) const;  // takes or gives
};

/// Collective. How many commits a rank has done, or nothing while it has no state. Throws Error
/// when no rank has one.
Standing compare_commits(ProcessGroup& group, std::optional<std::int64_t> commits);

/// A state, and values beside it.
struct HandedState {
  Snapshot state;  // empty where it is not taken
  nlohmann::json values;
  std::size_t bytes = 0;  // that each taker has got, where this process is the source
};

/// A state that is about to come.
struct StateOffer {
  const nlohmann::json& description;  // describe_state()'s
  std::size_t bytes = 0;

  const nlohmann::json& part(const std::string& name) const;

  /// Whether this process has the memory to hold it beside its own.
  bool fits_in_memory() const;
};

/// What hand_over() asks of a rank.
struct StateHolder {
  /// The state and values of a rank that has them. The state's tensors are those in use.
  std::function<HandedState()> offer;
  /// Before a state is taken: tensors in use that may be written over at once, so that memory holds
  /// them only once. If the transfer then fails, what they held is lost.
  std::function<Snapshot(const StateOffer&)> give_up;
};

/// Collective. The state goes from those who have it to the takers, the source's values to all.
HandedState hand_over(ProcessGroup& group, const Standing& standing, const StateHolder& holder);

/// Collective. The same for several states, each with its own givers and takers: `holder_of` is
/// asked for those in which this rank has a part. Ranks that have to do with different states send
/// and receive at the same time. The values of states are not given.
std::vector<HandedState> hand_over_each(ProcessGroup& group, const std::vector<Standing>& standings,
                                        const std::function<StateHolder(int)>& holder_of);

/// In which order hand_over_each() transfers them, the same on all ranks, so that nobody waits in a
/// circle. Those that nobody takes are left out.
std::vector<int> order_of_transfers(const std::vector<Standing>& standings);

/// Whether a SyncBatchNorm communicates in a group of its own, which nobody would form again.
bool has_group_of_its_own(const torch::nn::Module& module, const ProcessGroup& group);

/// Lets every SyncBatchNorm communicate in the world's group as it is now.
void join_group(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace lockstep
