#pragma once

// What backward does before its products and, where heads are divided among blocks, after them.

#include "kernels/attention_pairs.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kPassThreads = 256;
inline constexpr int kJoinThreads = kGroups * kGroupThreads;

/// For backward's kernel, a tile of a head after the other: minus the logarithms of sums, in powers
/// of two, and the dot products of rows of `out` and its gradient. A block has a tile.
__global__ void __launch_bounds__(kPassThreads)
    row_kernel(const Bf16* out, const Bf16* gradient, const float* log_sum_exp, float* rows,
               Shape shape) {
  constexpr int kLanes = kHeadSize / kPack;  // of a row
  const int head = static_cast<int>(blockIdx.x) / shape.tiles();
  const int tile = static_cast<int>(blockIdx.x) % shape.tiles();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t stride = shape.heads * kHeadSize;
  const std::int64_t first =
      row_of(shape, head, tile) * stride + column_of(shape, head) + lane * kPack;
  const float* log_sums =
      log_sum_exp + static_cast<std::int64_t>(head) * shape.tokens + tile * kTokens;
  float* results = rows + static_cast<std::int64_t>(blockIdx.x) * 2 * kTokens;
#pragma unroll
  for (int row = threadIdx.x / kLanes; row < kTokens; row += kPassThreads / kLanes) {
    float a[kPack], b[kPack];
    unpack(load_streaming(out + first + row * stride), a);
    unpack(load(gradient + first + row * stride), b);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kPack; ++i) dot = fmaf(a[i], b[i], dot);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      dot += __shfl_xor_sync(0xffffffffu, dot, distance);
    }
    if (lane != 0) continue;
    const int place = row_value_place(row);
    results[place] = -log_sums[row] * kLog2E;
    results[kTokens + place] = dot;
  }
}

struct JoinShared {
  float sums[kJoinThreads / kWarp][kHeadSize];  // of each warp's rows
};

/// Gradients of queries from both parts of a head (attention_backward.cuh), whose threads left
/// them in an order of their own, and what they add up to in each column. A block has a tile, and a
/// thread what two threads had there. The second part begins at the second tile of keys, which the
/// first queries do not see.
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const float* scratch, Bf16* qkv_gradient, float* query_sums, Shape shape) {
  auto& sums = shared_memory<JoinShared>().sums;
  const int head = static_cast<int>(blockIdx.x) / shape.tiles();
  const int tile = static_cast<int>(blockIdx.x) % shape.tiles();
  const std::int64_t size = kTokens * kHeadSize, part = size * shape.tiles();
  const float* first = scratch + head * 2 * part + tile * size + threadIdx.x * 4;
  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * 16 + lane / 4;
  const std::int64_t stride = std::int64_t{3} * shape.heads * kHeadSize;
  Bf16* result = qkv_gradient + (row_of(shape, head, tile) + row) * stride +
                 column_of(shape, head) + lane % 4 * 2;
  float columns[16];
#pragma unroll
  for (int i = 0; i < kHeadSize / 8; ++i) {
    const float* at = first + i * kJoinThreads * 4;
    float4 sum = *reinterpret_cast<const float4*>(at);
    if (tile > 0) {
      const float4 other = *reinterpret_cast<const float4*>(at + part);
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    unsigned* pairs = reinterpret_cast<unsigned*>(result + i * 8);
    *pairs = pair_of(sum.x * shape.scale, sum.y * shape.scale);
    pairs[4 * stride] = pair_of(sum.z * shape.scale, sum.w * shape.scale);  // eight rows below
    columns[i * 2] = sum.x + sum.z;
    columns[i * 2 + 1] = sum.y + sum.w;
  }
  put_column_sums(columns, sums[threadIdx.x / kWarp]);
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kHeadSize) return;
  float sum = 0.0f;
  for (const auto& of_warp : sums) sum += of_warp[column];
  const int first_row = row_of(shape, head, tile);
  query_sums_of(query_sums, shape, head, first_row, kTokens)[column] = sum * shape.scale;
}

}  // namespace lockstep::kernels::attention
