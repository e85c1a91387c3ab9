#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/snapshot.h"
#include "lockstep/tensor_range.h"

namespace lockstep {

struct RangesToRead {
  std::string path;           // of a folder step_<N>
  std::int64_t sequence = 0;  // that its manifest must have
  const TensorRanges& ranges;
  int rank = 0;
  int ranks = 1;  // that share in comparing checksums
};

struct RangesRead {
  Snapshot snapshot;
  std::string problem;   // damaged, or not to be seen from here
  std::string mismatch;  // sound, and not of the model that the ranges are of
};

/// Reads from a snapshot's files what one rank needs, by ranges. The ranks together compare the
/// checksums of all files. Throws nothing.
RangesRead read_ranges(const RangesToRead& wanted);

/// Reads a safetensors file tensor by tensor, by name; `take` gets each in memory of its own.
/// Throws InvalidArgument and SystemError.
void for_each_safetensor(
    const std::string& path,
    const std::function<void(const std::string& name, const at::Tensor& tensor)>& take);

}  // namespace lockstep
