#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/sampler.h"

namespace lockstep {

struct DistributedSamplerOptions {
  std::int64_t dataset_size = 0;  // samples in the whole dataset, not in one rank's share
  int world_size = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;  // must be the same on every rank
  bool drop_last = false;  // false: pad by repeating samples; true: leave the remainder out
};

/// Decides which samples this rank reads in an epoch, and in what order.
///
/// The order depends on the options and the epoch alone, so ranks agree without talking. It equals,
/// index for index, that of Python's torch.utils.data.DistributedSampler under the same options.
/// Every rank calls set_epoch() with the same epoch.
///
/// An empty dataset gives every rank an empty share; so does drop_last when there are fewer samples
/// than ranks.
class DistributedSampler : public Sampler {
 public:
  /// Throws InvalidArgument when the options contradict each other.
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  /// Samples per rank and epoch. The same on every rank, so that no rank is left waiting in a
  /// collective for one that has run out of data.
  std::int64_t size() const override;

  /// This rank's dataset indices for the current epoch.
  std::vector<std::int64_t> indices() const override;

 private:
  DistributedSamplerOptions options_;
};

}  // namespace lockstep
