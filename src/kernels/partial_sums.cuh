#pragma once

// Column sums in two steps that give the same bits each time: every block leaves its sums in a row
// of its own, then one kernel adds the rows in order.

#include "kernels/device.cuh"

namespace lockstep::kernels {

/// The kinds of sums that one pass may leave.
inline constexpr int kGammaSums = 0;
inline constexpr int kBetaSums = 1;
inline constexpr int kBiasSums = 2;
inline constexpr int kSumKinds = 3;

/// Where this block leaves its sums: [kind][block][columns].
__device__ inline float* partial_of(float* partial, int kind, int columns) {
  return partial + (static_cast<std::int64_t>(kind) * gridDim.x + blockIdx.x) * columns;
}

struct SumsOut {
  float* kinds[kSumKinds];  // null: not wanted
};

/// Adds the rows of all blocks.
void finish_sums(const float* partial, SumsOut out, int blocks, int columns, Stream stream);

}  // namespace lockstep::kernels
