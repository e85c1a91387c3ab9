#pragma once

// What attention's kernels, forward and backward, have in common: heads of 64 columns, so that a
// token's queries, keys or values are one row of a tile, and tiles of 128 tokens. Groups of warps
// multiply, each with 64 rows at a time.

#include "kernels/fragments.cuh"
#include "kernels/wgmma.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kHeadSize = kSide;
inline constexpr int kTokens = 128;               // of a tile
inline constexpr int kTile = kTokens * kTileRow;  // bytes
inline constexpr int kSquares = kTokens / kSide;  // of a tile
inline constexpr int kSteps = kTokens / kStep;    // of a sum over a tile's tokens
inline constexpr int kDeeps = kHeadSize / kStep;  // of a sum over a head's columns

/// Bytes of shared memory that a block can have.
inline constexpr int kMostShared = 227 * 1024;

struct Shape {
  int batch, tokens, heads;
  float scale;

  __host__ __device__ int tiles() const { return tokens / kTokens; }
  __host__ __device__ int all_heads() const { return batch * heads; }
};

/// Where a head's tile lies: the row of its first token, and its column within the queries, the
/// keys (`part` 1) or the values (2).
__device__ inline int row_of(const Shape& shape, int head, int tile) {
  return head / shape.heads * shape.tokens + tile * kTokens;
}
__device__ inline int square_row_of(const Shape& shape, int head, int square) {
  return row_of(shape, head, 0) + square * kSide;
}
__device__ inline int column_of(const Shape& shape, int head, int part = 0) {
  return (part * shape.heads + head % shape.heads) * kHeadSize;
}

/// A square of float32 sums times `factor`, as bfloat16s in shared memory.
__device__ inline void put_square(unsigned char* square, const float (&sums)[kSide / 2],
                                  float factor) {
#pragma unroll
  for (int i = 0; i < kSide / 16; ++i) {
    unsigned pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* first = &sums[i * 8 + j * 2];
      pairs[j] = pair_of(first[0] * factor, first[1] * factor);
    }
    store_matrices(matrices_in(square, i), pairs);
  }
}

/// Where what a tile or a square of queries' gradients adds up to in each column goes: `sums` has a
/// row for each of them, so many `tokens` high, as wide as all heads.
__device__ inline float* query_sums_of(float* sums, const Shape& shape, int head, int row,
                                       int tokens) {
  return sums + static_cast<std::int64_t>(row / tokens) * shape.heads * kHeadSize +
         column_of(shape, head);
}

}  // namespace lockstep::kernels::attention
