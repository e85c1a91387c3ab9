#include "data/permutation.h"

#include <ATen/core/Tensor.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// 8 TiB of indices: no machine holds it, and beyond it libtorch's own message speaks of storage
// sizes, not of the dataset.
constexpr std::int64_t kMaxShuffled = std::int64_t{1} << 40;

}  // namespace

at::Generator epoch_generator(std::uint64_t seed, std::int64_t epoch) {
  return at::make_generator<at::CPUGeneratorImpl>(seed + static_cast<std::uint64_t>(epoch));
}

std::vector<std::int64_t> random_permutation(std::int64_t count, at::Generator& generator) {
  if (count > kMaxShuffled) {
    throw InvalidArgument(concat("a shuffled order of ", count,
                                 " samples is held in memory; at most ", kMaxShuffled,
                                 " can be (turn shuffling off, or shuffle by shards)"));
  }
  const at::Tensor permutation = at::randperm(count, generator, at::kLong);
  const auto* first = permutation.const_data_ptr<std::int64_t>();
  return {first, first + count};
}

}  // namespace lockstep
