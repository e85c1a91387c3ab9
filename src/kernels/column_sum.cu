#include "kernels/column_sum.h"

#include <algorithm>

#include "kernels/partial_sums.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kColumnsPerBlock = kWarp * kPack;  // a warp reads 512 bytes of a row at a time
constexpr int kWarpsPerBlock = kThreads / kWarp;
constexpr int kRowsAtOnce = 4;

// The grid is [column groups, row groups]; the warps of a block share its rows.
__global__ void sum_kernel(const Bf16* x, float* partial, int rows, int columns) {
  __shared__ float shared[kWarpsPerBlock][kColumnsPerBlock];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = (blockIdx.x * kWarp + lane) * kPack;
  float sums[kPack] = {};
  if (column < columns) {
    const int stride = gridDim.y * kWarpsPerBlock;
    int row = blockIdx.y * kWarpsPerBlock + warp;
    for (; row + (kRowsAtOnce - 1) * stride < rows; row += kRowsAtOnce * stride) {
      Pack packs[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        packs[i] =
            load_streaming(x + static_cast<std::int64_t>(row + i * stride) * columns + column);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        float values[kPack];
        unpack(packs[i], values);
#pragma unroll
        for (int j = 0; j < kPack; ++j) sums[j] += values[j];
      }
    }
    for (; row < rows; row += stride) {
      float values[kPack];
      unpack(load_streaming(x + static_cast<std::int64_t>(row) * columns + column), values);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sums[j] += values[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) shared[warp][lane * kPack + j] = sums[j];
  __syncthreads();
  const int mine = blockIdx.x * kColumnsPerBlock + static_cast<int>(threadIdx.x);
  if (mine >= columns) return;
  float sum = 0.0f;
  for (int w = 0; w < kWarpsPerBlock; ++w) sum += shared[w][threadIdx.x];
  partial[static_cast<std::int64_t>(blockIdx.y) * columns + mine] = sum;
}

// One warp per 32 columns; its lanes' sums are of consecutive blocks, so the order is fixed.
__global__ void finish_kernel(const float* partial, SumsOut out, int blocks, int columns) {
  __shared__ float shared[kWarpsPerBlock][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = blockIdx.x * kWarp + lane;
  float* result = out.kinds[blockIdx.y];
  if (result == nullptr) return;
  const float* rows = partial + static_cast<std::int64_t>(blockIdx.y) * blocks * columns;
  float sum = 0.0f;
  if (column < columns) {
    for (int block = warp; block < blocks; block += kWarpsPerBlock) {
      sum += rows[static_cast<std::int64_t>(block) * columns + column];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kWarpsPerBlock; ++w) sum += shared[w][lane];
  result[column] = sum;
}

int column_groups(int columns) {
  return (columns + kColumnsPerBlock - 1) / kColumnsPerBlock;
}

// Enough blocks to fill the device a few times, and no more rows of partial sums than that takes.
int row_groups(int rows, int columns) {
  const int wanted = std::max(1, 8 * multiprocessors() / column_groups(columns));
  return std::min(wanted, (rows + kWarpsPerBlock - 1) / kWarpsPerBlock);
}

}  // namespace

void finish_sums(const float* partial, SumsOut out, int blocks, int columns, Stream stream) {
  const dim3 grid((columns + kWarp - 1) / kWarp, kSumKinds);
  finish_kernel<<<grid, kThreads, 0, stream>>>(partial, out, blocks, columns);
  check_launch("finish_sums");
}

std::int64_t column_sum_scratch(int rows, int columns) {
  return std::int64_t{row_groups(rows, columns)} * columns;
}

void column_sum(const Bf16* x, float* out, float* partial, int rows, int columns, Stream stream) {
  require(rows > 0, "column_sum", "at least one row");
  require(columns > 0 && columns % kPack == 0, "column_sum", "columns that are a multiple of 8");
  const dim3 grid(column_groups(columns), row_groups(rows, columns));
  sum_kernel<<<grid, kThreads, 0, stream>>>(x, partial, rows, columns);
  check_launch("column_sum");
  finish_sums(partial, {{out, nullptr, nullptr}}, static_cast<int>(grid.y), columns, stream);
}

}  // namespace lockstep::kernels
