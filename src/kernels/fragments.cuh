#pragma once

// A thread's part of tiles: squares of 64 rows of 64 bfloat16s, one of whose rows is a row of a
// tile in shared memory, are held by a group of warps, 16 rows by each.

#include "kernels/hopper.cuh"

namespace lockstep::kernels {

inline constexpr int kWarpsOfGroup = kGroupThreads / kWarp;
inline constexpr int kSide = 64;
inline constexpr int kSquare = kSide * kTileRow;  // bytes
inline constexpr int kStep = 16;                  // terms of a sum that one instruction multiplies

__device__ inline int thread_of_group() {
  return static_cast<int>(threadIdx.x) % kGroupThreads;
}
/// The one thread of the group that starts copies.
__device__ inline bool leads_group() {
  return thread_of_group() == 0;
}
/// The one thread of a warp that tells others of it.
__device__ inline bool leads_warp() {
  return threadIdx.x % kWarp == 0;
}
/// This thread's group in the block. All lanes of a warp have the first one's, so that the compiler
/// knows that they agree: what follows from it needs no register in every lane.
__device__ inline int group_of_block() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}

__device__ inline unsigned pair_of(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const unsigned&>(pair);
}
__device__ inline float2 floats_of(unsigned pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

/// Where lanes find the values of load_matrices() and store_matrices() in a square: 16 rows of the
/// warp, 16 columns from 16 * `sixteen` on.
__device__ inline unsigned matrices_in(const unsigned char* square, int sixteen) {
  const int lane = threadIdx.x % kWarp, warp = thread_of_group() / kWarp;
  const int row = warp * 16 + lane % 16;
  const int place = (sixteen * 2 + lane / 16) ^ (row % 8);
  return shared_address(square) + row * kTileRow + place * 16;
}

/// 16 columns of sums, from 16 * `sixteen` on, rounded and laid out as load_matrices() gives them,
/// which is also how a product takes them.
template <int kSums>
__device__ inline void round_sums(const float (&sums)[kSums], int sixteen, unsigned (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* first = &sums[sixteen * 8 + i * 2];
    pairs[i] = pair_of(first[0], first[1]);
  }
}

/// Of 16 columns, of which a lane has the sums over a few of the warp's 16 rows, half of them go
/// on: those that this lane keeps get what the lane `2 * kHalf` away has of them.
template <int kHalf>
__device__ inline void halve_columns(float (&columns)[16]) {
  const bool keeps_second = threadIdx.x & kHalf * 2;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float first = columns[i], second = columns[kHalf + i];
    const float other = __shfl_xor_sync(0xffffffffu, keeps_second ? first : second, kHalf * 2);
    columns[i] = (keeps_second ? second : first) + other;
  }
}

/// What the columns of a square add up to over the warp's 16 rows, put where `sums` has room
/// for 64. A lane has two columns of each eight, over rows of its own.
__device__ inline void put_column_sums(float (&columns)[16], float* sums) {
  halve_columns<8>(columns);
  halve_columns<4>(columns);
  halve_columns<2>(columns);
  const int lane = threadIdx.x % kWarp;
  const int eight = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
  *reinterpret_cast<float2*>(sums + eight * 8 + lane % 4 * 2) = {columns[0], columns[1]};
}

}  // namespace lockstep::kernels
