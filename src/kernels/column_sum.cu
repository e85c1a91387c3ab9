#include "kernels/column_sum.h"

#include <algorithm>

#include "kernels/gelu.cuh"
#include "kernels/partial_sums.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kMostThreads = 384;
constexpr int kResidentBlocks = 3;  // of so many threads
constexpr int kRowsAtOnce = 2;      // and the next ones are on their way

// Where the summed values come from: the first columns of a matrix, or three side by side, which
// are joined on the way. read() begins to load, value() makes what is summed of it.
struct First {
  using Read = Pack;
  const Bf16* x;
  int stride;

  __device__ Read read(std::int64_t row, int column, int) const {
    return load_streaming(x + row * stride + column);
  }
  __device__ static Pack value(const Read& read) { return read; }
  __device__ void pass_on(std::int64_t, int, int, const Pack&) const {}
};

struct Joined {
  using Read = Pack;
  const Bf16* parts[3];
  Bf16* out;

  __device__ static Pack value(const Read& read) { return read; }
  __device__ Read read(std::int64_t row, int column, int columns) const {
    const int width = columns / 3;
    const int part = column / width;
    return load_streaming(parts[part] + row * width + column - part * width);
  }
  __device__ void pass_on(std::int64_t row, int column, int columns, const Pack& pack) const {
    store(out + row * columns + column, pack);
  }
};

// The gradient of what went into GELU's tanh form.
struct ThroughGelu {
  struct Read {
    Pack gradient, before;
  };
  const Bf16* gradient;
  const Bf16* before;
  Bf16* out;

  __device__ Read read(std::int64_t row, int column, int columns) const {
    const std::int64_t at = row * columns + column;
    return {load_streaming(gradient + at), load_streaming(before + at)};
  }
  __device__ static Pack value(const Read& read) {
    float gradients[kPack], xs[kPack];
    unpack(read.gradient, gradients);
    unpack(read.before, xs);
#pragma unroll
    for (int j = 0; j < kPack; ++j) gradients[j] *= gelu(xs[j]).slope;
    return pack(gradients);
  }
  __device__ void pass_on(std::int64_t row, int column, int columns, const Pack& pack) const {
    store(out + row * columns + column, pack);
  }
};

// A thread has eight columns of all rows that its block takes, so the sums stay in its registers.
// The grid is [column groups, row groups]; a row is read from one end to the other, which memory
// likes.
template <class Source>
__global__ void __launch_bounds__(kMostThreads, kResidentBlocks)
    sum_kernel(Source source, float* partial, int rows, int columns) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * kPack;
  if (column >= columns) return;
  const int stride = static_cast<int>(gridDim.y) * kRowsAtOnce;
  typename Source::Read next[kRowsAtOnce] = {};
  const auto read_next = [&](int first) {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i < rows) next[i] = source.read(first + i, column, columns);
    }
  };
  int first = static_cast<int>(blockIdx.y) * kRowsAtOnce;
  read_next(first);
  float sums[kPack] = {};
  for (; first < rows; first += stride) {
    typename Source::Read now[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) now[i] = next[i];
    read_next(first + stride);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (first + i >= rows) continue;
      const Pack pack = source.value(now[i]);
      source.pass_on(first + i, column, columns, pack);
      float values[kPack];
      unpack(pack, values);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sums[j] += values[j];
    }
  }
  store_floats(partial + static_cast<std::int64_t>(blockIdx.y) * columns + column, sums);
}

constexpr int kWarpsPerBlock = 8;

// A warp has one column of the values, and so one row of the projection.
__global__ void key_and_value_bias_kernel(AttentionBiasGradient pass, int width) {
  const int column = static_cast<int>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (column >= width) return;
  const Bf16* weights = pass.projection + static_cast<std::int64_t>(column) * width;
  float sum = 0.0f;
  for (int at = lane * kPack; at < width; at += kWarp * kPack) {
    float values[kPack], sums[kPack];
    unpack(load(weights + at), values);
    load_floats(pass.projected_sums + at, sums);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum += values[j] * sums[j];
  }
  sum = warp_sum(sum);
  if (lane != 0) return;
  pass.out[width + column] = 0.0f;
  pass.out[2 * width + column] = sum;
}

constexpr int kFinishWarps = 32;

// One warp per 32 columns; its lanes' sums are of consecutive blocks, so the order is fixed.
__global__ void finish_kernel(UnfinishedSums sums) {
  __shared__ float shared[kFinishWarps][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = blockIdx.x * kWarp + lane;
  const int columns = sums.columns;
  float* result = sums.out[blockIdx.y];
  if (result == nullptr) return;
  const float* rows = sums.partial + static_cast<std::int64_t>(blockIdx.y) * sums.blocks * columns;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int block = warp; block < sums.blocks; block += kFinishWarps) {
      sum += rows[static_cast<std::int64_t>(block) * columns + column];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kFinishWarps; ++w) sum += shared[w][lane];
  result[column] = sum;
}

// The widest block whose threads all have columns, or nearly.
int threads_of(int columns) {
  const int packs = columns / kPack;
  const int groups = (packs + kMostThreads - 1) / kMostThreads;
  return ((packs + groups - 1) / groups + kWarp - 1) / kWarp * kWarp;
}

int column_groups(int columns) {
  const int width = threads_of(columns) * kPack;
  return (columns + width - 1) / width;
}

// As many blocks as fit on the device at a time, by their threads, and no more rows of partial sums
// than that takes.
int row_groups(int rows, int columns) {
  constexpr int kThreadsPerMultiprocessor = kResidentBlocks * kMostThreads;
  const int blocks = kThreadsPerMultiprocessor / threads_of(columns) * multiprocessors();
  return std::clamp(blocks / column_groups(columns), 1, (rows + kRowsAtOnce - 1) / kRowsAtOnce);
}

template <class Source>
UnfinishedSums sum_columns(const char* name, const Source& source, float* sums, float* partial,
                           int rows, int columns, Stream stream) {
  require(rows > 0, name, "at least one row");
  require(columns > 0 && columns % kPack == 0, name, "columns that are a multiple of 8");
  const dim3 grid(column_groups(columns), row_groups(rows, columns));
  sum_kernel<<<grid, threads_of(columns), 0, stream>>>(source, partial, rows, columns);
  check_launch(name);
  return {
      .partial = partial, .out = {sums}, .blocks = static_cast<int>(grid.y), .columns = columns};
}

}  // namespace

void finish_sums(const UnfinishedSums& sums, Stream stream) {
  const dim3 grid((sums.columns + kWarp - 1) / kWarp, kSumKinds);
  finish_kernel<<<grid, kFinishWarps * kWarp, 0, stream>>>(sums);
  check_launch("finish_sums");
}

std::int64_t column_sum_scratch(int rows, int columns) {
  return std::int64_t{row_groups(rows, columns)} * columns;
}

void column_sum(const Bf16* x, float* out, float* partial, int rows, int columns, Stream stream) {
  finish_sums(sum_columns("column_sum", First{x, columns}, out, partial, rows, columns, stream),
              stream);
}

void attention_bias_gradient(const AttentionBiasGradient& pass, int rows, int width,
                             Stream stream) {
  require(width > 0 && width % kPack == 0, "attention_bias_gradient",
          "a width that is a multiple of 8");
  UnfinishedSums queries = pass.queries;
  if (queries.partial == nullptr) {
    queries = sum_columns("attention_bias_gradient", First{pass.qkv_gradient, 3 * width}, pass.out,
                          pass.partial, rows, width, stream);
  }
  require(queries.columns == width, "attention_bias_gradient", "sums of as many columns");
  queries.out[0] = pass.out;
  finish_sums(queries, stream);
  const int blocks = (width + kWarpsPerBlock - 1) / kWarpsPerBlock;
  key_and_value_bias_kernel<<<blocks, kWarpsPerBlock * kWarp, 0, stream>>>(pass, width);
  check_launch("attention_bias_gradient");
}

void join_columns(const JoinColumns& pass, int rows, int width, Stream stream) {
  require(width % kPack == 0, "join_columns", "a width that is a multiple of 8");
  const Joined source{{pass.parts[0], pass.parts[1], pass.parts[2]}, pass.out};
  finish_sums(sum_columns("join_columns", source, pass.sums, pass.partial, rows, 3 * width, stream),
              stream);
}

UnfinishedSums gelu_gradient(const GeluGradient& pass, int rows, int columns, Stream stream) {
  const ThroughGelu source{pass.gradient, pass.before, pass.out};
  return sum_columns("gelu_gradient", source, pass.sums, pass.partial, rows, columns, stream);
}

}  // namespace lockstep::kernels
