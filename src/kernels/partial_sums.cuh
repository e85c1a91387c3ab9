#pragma once

// Column sums in two steps that give the same bits each time: every block leaves its sums in a row
// of its own, then one kernel adds the rows in order.

#include "kernels/device.cuh"
#include "kernels/unfinished_sums.h"

namespace lockstep::kernels {

/// The kinds of sums of a norm's backward; other passes leave the first alone.
inline constexpr int kGammaSums = 0;
inline constexpr int kBetaSums = 1;
inline constexpr int kBiasSums = 2;

/// Where this block leaves its sums: [kind][block][columns].
__device__ inline float* partial_of(float* partial, int kind, int columns) {
  return partial + (static_cast<std::int64_t>(kind) * gridDim.x + blockIdx.x) * columns;
}

}  // namespace lockstep::kernels
