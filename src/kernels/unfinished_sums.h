#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// The kinds of sums that one pass may leave.
inline constexpr int kSumKinds = 3;

/// Column sums of a pass over rows, whose blocks have left theirs in scratch memory. What is left
/// to do is little and nobody waits for it: it may be done on another stream, and always gives the
/// same bits.
struct UnfinishedSums {
  const float* partial = nullptr;  // [kind][block][column]
  float* out[kSumKinds] = {};      // null: not wanted
  int blocks = 0;
  int columns = 0;
};
void finish_sums(const UnfinishedSums& sums, Stream stream);

}  // namespace lockstep::kernels
