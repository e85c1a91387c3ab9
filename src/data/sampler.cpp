#include "lockstep/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>

#include "data/permutation.h"
#include "lockstep/error.h"

namespace lockstep {

SequentialSampler::SequentialSampler(std::int64_t dataset_size) : dataset_size_(dataset_size) {
  if (dataset_size < 0) {
    throw InvalidArgument(
        concat("SequentialSampler: dataset_size is ", dataset_size, "; it cannot be negative"));
  }
}

std::vector<std::int64_t> SequentialSampler::indices() const {
  std::vector<std::int64_t> order(dataset_size_);
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

RandomSampler::RandomSampler(const RandomSamplerOptions& options) : options_(options) {
  if (options_.dataset_size <= 0) {
    throw InvalidArgument(concat("RandomSampler: dataset_size is ", options_.dataset_size,
                                 "; it must be at least 1"));
  }
  if (size() <= 0) {
    throw InvalidArgument(
        concat("RandomSampler: num_samples is ", size(), "; it must be at least 1"));
  }
}

std::int64_t RandomSampler::size() const {
  return options_.num_samples.value_or(options_.dataset_size);
}

std::vector<std::int64_t> RandomSampler::indices() const {
  at::Generator generator = epoch_generator(options_.seed, epoch());
  if (options_.replacement) {
    const at::Tensor drawn = at::randint(options_.dataset_size, {size()}, generator, at::kLong);
    const auto* first = drawn.const_data_ptr<std::int64_t>();
    return {first, first + size()};
  }
  // More samples than the dataset has: one whole permutation after the other, the last one cut.
  std::vector<std::int64_t> order;
  order.reserve(size());
  for (std::int64_t missing = size(); missing > 0;) {
    const auto round = random_permutation(options_.dataset_size, generator);
    const std::int64_t taken = std::min(missing, options_.dataset_size);
    order.insert(order.end(), round.begin(), round.begin() + taken);
    missing -= taken;
  }
  return order;
}

SubsetSampler::SubsetSampler(std::vector<std::int64_t> subset, const SubsetSamplerOptions& options)
    : subset_(std::move(subset)), options_(options) {
  for (const std::int64_t index : subset_) {
    if (index < 0) {
      throw InvalidArgument(concat("SubsetSampler: index ", index, " is negative"));
    }
  }
}

std::int64_t SubsetSampler::size() const {
  return static_cast<std::int64_t>(subset_.size());
}

std::vector<std::int64_t> SubsetSampler::indices() const {
  if (!options_.shuffle) return subset_;
  at::Generator generator = epoch_generator(options_.seed, epoch());
  std::vector<std::int64_t> order = random_permutation(size(), generator);
  for (std::int64_t& position : order) position = subset_[position];
  return order;
}

}  // namespace lockstep
