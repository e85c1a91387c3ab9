#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// How samples are shared out between slots when their number does not divide.
enum class Dealing {
  /// Every slot gets as many: some samples are repeated, or with drop_last some left out. For
  /// training; index for index what Python's DistributedSampler gives.
  kEven,
  /// Every sample exactly once; the last batches of some slots are shorter or empty. For
  /// evaluation.
  kExact,
};

/// Over how many slots a dataset is dealt, and which of them this process computes.
///
/// A slot is a logical rank. Its number is fixed for a run, so that the samples of a step stay the
/// same when the run goes on with another number of processes.
struct Deal {
  int slots = 1;
  std::vector<int> mine = {0};  // in the order in which they are delivered
  std::int64_t accumulate = 1;  // micro-batches that a step takes from each slot
};

/// Where a batch belongs. What it holds is a function of this address, the options and the number
/// of slots, and of nothing else.
struct BatchAddress {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // of the epoch
  int slot = 0;
  std::int64_t micro_batch = 0;

  bool operator==(const BatchAddress&) const = default;
};

/// All that a loader needs to go on: small enough for any snapshot.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t steps = 0;  // of the epoch that were committed

  bool operator==(const LoaderState&) const = default;
};

}  // namespace lockstep
