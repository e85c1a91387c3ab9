#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>

namespace lockstep {

/// The generator of one epoch: what `torch.Generator().manual_seed(seed + epoch)` is in Python.
/// seed + epoch wraps at 2^64, where Python refuses.
at::Generator epoch_generator(std::uint64_t seed, std::int64_t epoch);

/// `torch.randperm(count, generator=generator)`. A std:: shuffle would be as random but would give
/// another order, and C++ and Python ranks could not share a job.
/// Throws InvalidArgument when the order could not be held in memory.
std::vector<std::int64_t> random_permutation(std::int64_t count, at::Generator& generator);

}  // namespace lockstep
