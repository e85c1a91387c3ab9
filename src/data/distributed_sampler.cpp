#include "lockstep/distributed_sampler.h"

#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

void validate(const DistributedSamplerOptions& options) {
  if (options.dataset_size < 0) {
    throw InvalidArgument(concat("DistributedSampler: dataset_size is ", options.dataset_size,
                                 "; it cannot be negative"));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    throw InvalidArgument(concat("DistributedSampler: rank ", options.rank,
                                 " is outside [0, world_size) with world_size ",
                                 options.world_size));
  }
}

// The order of the whole dataset, identical on every rank.
std::vector<std::int64_t> global_order(const DistributedSamplerOptions& options,
                                       std::int64_t epoch) {
  if (!options.shuffle) {
    std::vector<std::int64_t> order(options.dataset_size);
    std::iota(order.begin(), order.end(), std::int64_t{0});
    return order;
  }
  // Seeding with seed + epoch and drawing with randperm is what Python does. A std:: shuffle would
  // be as random but would give another order, and C++ and Python ranks could not share a job.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed + epoch);
  const at::Tensor permutation = at::randperm(options.dataset_size, generator, at::kLong);
  const auto* first = permutation.const_data_ptr<std::int64_t>();
  return {first, first + options.dataset_size};
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options) {
  validate(options_);
}

void DistributedSampler::set_epoch(std::int64_t epoch) { epoch_ = epoch; }

std::int64_t DistributedSampler::size() const {
  const std::int64_t round_up = options_.drop_last ? 0 : options_.world_size - 1;
  return (options_.dataset_size + round_up) / options_.world_size;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const std::vector<std::int64_t> order = global_order(options_, epoch_);
  const std::int64_t count = size();

  std::vector<std::int64_t> share;
  share.reserve(count);
  for (std::int64_t turn = 0; turn < count; ++turn) {
    // Ranks deal the order out like cards. Past the end the deal starts over from the front: that
    // is the padding, and with drop_last it is never reached.
    const std::int64_t position = turn * options_.world_size + options_.rank;
    share.push_back(order[position % options_.dataset_size]);
  }
  return share;
}

}  // namespace lockstep
