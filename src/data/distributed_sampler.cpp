#include "lockstep/distributed_sampler.h"

#include "data/permutation.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

void validate(const DistributedSamplerOptions& options) {
  if (options.dataset_size < 0) {
    throw InvalidArgument(concat("DistributedSampler: dataset_size is ", options.dataset_size,
                                 "; it cannot be negative"));
  }
  if (options.world_size < 1) {
    throw InvalidArgument(concat("DistributedSampler: world_size is ", options.world_size,
                                 "; it must be at least 1"));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    throw InvalidArgument(concat("DistributedSampler: rank ", options.rank,
                                 " is outside [0, world_size) with world_size ",
                                 options.world_size));
  }
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options) {
  validate(options_);
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t whole = options_.dataset_size / options_.world_size;
  const bool remainder = options_.dataset_size % options_.world_size != 0;
  return whole + (remainder && !options_.drop_last ? 1 : 0);
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  // Without shuffling the order is 0, 1, 2, ... and need not be written down.
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    at::Generator generator = epoch_generator(options_.seed, epoch());
    order = random_permutation(options_.dataset_size, generator);
  }

  const std::int64_t count = size();
  std::vector<std::int64_t> share;
  share.reserve(count);
  for (std::int64_t turn = 0; turn < count; ++turn) {
    // Ranks deal the order out like cards. Past the end the deal starts over from the front: that
    // is the padding, and with drop_last it is never reached.
    const std::int64_t position =
        (turn * options_.world_size + options_.rank) % options_.dataset_size;
    share.push_back(options_.shuffle ? order[position] : position);
  }
  return share;
}

}  // namespace lockstep
