#include "kernels/layer_norm.h"

#include <algorithm>
#include <type_traits>

#include "kernels/device.cuh"
#include "kernels/partial_sums.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kMaxColumns = 2048;

// Forward: a warp has a row, a lane every 32nd pack of it (Packs is how many that are at most), so
// that a row is summed without a barrier. Blocks stay: gamma and beta are read once, and the next
// row is on its way while this one is computed.
constexpr int kForwardThreads = 256;
constexpr int kForwardWarps = kForwardThreads / kWarp;

template <int Packs, bool Adds>
struct Row {
  Pack x[Packs];
  Pack addend[Adds ? Packs : 1];
};

template <int Packs, bool Adds>
__device__ void read_row(Row<Packs, Adds>& row, const LayerNormForward& pass, std::int64_t start,
                         int packs) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < Packs; ++i) {
    const int at = lane + i * kWarp;
    if (at >= packs) continue;
    row.x[i] = load(pass.x + start + at * kPack);
    if constexpr (Adds) row.addend[i] = load(pass.addend + start + at * kPack);
  }
}

template <int Packs, bool Adds>
__global__ void __launch_bounds__(kForwardThreads)
    forward_kernel(LayerNormForward pass, int rows, int columns) {
  const int lane = threadIdx.x % kWarp;
  const int packs = columns / kPack;
  const float inverse = 1.0f / static_cast<float>(columns);
  Pack gammas[Packs], betas[Packs];
#pragma unroll
  for (int i = 0; i < Packs; ++i) {
    const int at = lane + i * kWarp;
    if (at >= packs) continue;
    gammas[i] = load(pass.gamma + at * kPack);
    betas[i] = load(pass.beta + at * kPack);
  }

  const int stride = gridDim.x * kForwardWarps;
  int index = blockIdx.x * kForwardWarps + threadIdx.x / kWarp;
  Row<Packs, Adds> next;
  if (index < rows) read_row(next, pass, static_cast<std::int64_t>(index) * columns, packs);
  for (; index < rows; index += stride) {
    const std::int64_t start = static_cast<std::int64_t>(index) * columns;
    const Row<Packs, Adds> row = next;
    if (index + stride < rows) {
      read_row(next, pass, static_cast<std::int64_t>(index + stride) * columns, packs);
    }
    float values[Packs][kPack];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Packs; ++i) {
      const int at = lane + i * kWarp;
      if (at >= packs) continue;
      unpack(row.x[i], values[i]);
      if constexpr (Adds) {
        float more[kPack];
        unpack(row.addend[i], more);
#pragma unroll
        for (int j = 0; j < kPack; ++j) values[i][j] += more[j];
        const Pack rounded = pack(values[i]);
        store(pass.sum + start + at * kPack, rounded);
        unpack(rounded, values[i]);  // what backward will read
      }
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum += values[i][j];
    }
    const float mean = warp_sum(sum) * inverse;

    float squares = 0.0f;  // of the distances, which loses no digits as a sum of squares would
#pragma unroll
    for (int i = 0; i < Packs; ++i) {
      if (lane + i * kWarp >= packs) continue;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        const float distance = values[i][j] - mean;
        squares += distance * distance;
      }
    }
    const float rstd = rsqrtf(warp_sum(squares) * inverse + pass.epsilon);

#pragma unroll
    for (int i = 0; i < Packs; ++i) {
      const int at = lane + i * kWarp;
      if (at >= packs) continue;
      float gamma[kPack], beta[kPack];
      unpack(gammas[i], gamma);
      unpack(betas[i], beta);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        values[i][j] = (values[i][j] - mean) * rstd * gamma[j] + beta[j];
      }
      store(pass.out + start + at * kPack, pack(values[i]));
    }
    if (lane == 0) {
      pass.mean[index] = mean;
      pass.rstd[index] = rstd;
    }
  }
}

// Backward: a thread has eight columns of every row that its block takes, so that the three column
// sums stay in its registers from the first row to the last. Rows are taken some at a time, which
// keeps enough of them on the way and needs one barrier for all.
constexpr int kRowsAtOnce = 4;
constexpr int kRowSums = 2;  // of g, and of g * xhat

// How many blocks shall share a multiprocessor: with 128 registers a thread the loads of 512
// threads are on their way, which measured best (3.3 TB/s of an H200, against 2.3 where the
// compiler chose).
constexpr int resident_blocks(int threads) {
  return 512 / threads;
}

template <int Threads>
__global__ void __launch_bounds__(Threads, resident_blocks(Threads))
    backward_kernel(LayerNormBackward pass, int rows, int columns) {
  __shared__ float shared[2][kRowsAtOnce * kRowSums][Threads / kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int column = static_cast<int>(threadIdx.x) * kPack;
  const bool mine = column < columns;
  const float inverse = 1.0f / static_cast<float>(columns);

  float gamma[kPack] = {};
  if (mine) unpack(load(pass.gamma + column), gamma);
  float gamma_sums[kPack] = {}, beta_sums[kPack] = {}, bias_sums[kPack] = {};
  int turn = 0;
  for (int first = blockIdx.x * kRowsAtOnce; first < rows; first += gridDim.x * kRowsAtOnce) {
    Pack douts[kRowsAtOnce], xs[kRowsAtOnce], pasts[kRowsAtOnce];
    float means[kRowsAtOnce], rstds[kRowsAtOnce], factors[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      douts[r] = xs[r] = pasts[r] = Pack{};
      means[r] = rstds[r] = 0.0f;
      factors[r] = 1.0f;
      if (first + r >= rows) continue;
      means[r] = pass.mean[first + r];
      rstds[r] = pass.rstd[first + r];
      if (pass.factors != nullptr) factors[r] = pass.factors[first + r];
      if (!mine) continue;
      const std::int64_t at = static_cast<std::int64_t>(first + r) * columns + column;
      douts[r] = load_streaming(pass.dout + at);
      xs[r] = load_streaming(pass.x + at);
      if (pass.residual != nullptr) pasts[r] = load_streaming(pass.residual + at);
    }

    // dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dout * gamma.
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      float dout[kPack], x[kPack];
      unpack(douts[r], dout);
      unpack(xs[r], x);
      float sum = 0.0f, sum_xhat = 0.0f;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        dout[j] *= factors[r];
        const float xhat = (x[j] - means[r]) * rstds[r];
        const float g = dout[j] * gamma[j];
        sum += g;
        sum_xhat += g * xhat;
        gamma_sums[j] += dout[j] * xhat;
        beta_sums[j] += dout[j];
      }
      sum = warp_sum(sum);
      sum_xhat = warp_sum(sum_xhat);
      if (lane == 0) {
        shared[turn][r * kRowSums][warp] = sum;
        shared[turn][r * kRowSums + 1][warp] = sum_xhat;
      }
    }
    __syncthreads();  // the other half of `shared` is written next: one barrier a turn is enough

#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (first + r >= rows) continue;
      float sum = 0.0f, sum_xhat = 0.0f;
      for (int w = 0; w < Threads / kWarp; ++w) {
        sum += shared[turn][r * kRowSums][w];
        sum_xhat += shared[turn][r * kRowSums + 1][w];
      }
      const float mean_g = sum * inverse;
      const float mean_g_xhat = sum_xhat * inverse;
      if (!mine) continue;
      float dout[kPack], x[kPack], past[kPack], dx[kPack];
      unpack(douts[r], dout);
      unpack(xs[r], x);
      unpack(pasts[r], past);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        dout[j] *= factors[r];
        const float xhat = (x[j] - means[r]) * rstds[r];
        dx[j] = rstds[r] * (dout[j] * gamma[j] - mean_g - xhat * mean_g_xhat) + past[j];
        bias_sums[j] += dx[j];
      }
      store(pass.dx + static_cast<std::int64_t>(first + r) * columns + column, pack(dx));
    }
    turn = 1 - turn;
  }
  if (!mine) return;
  store_floats(partial_of(pass.partial, kGammaSums, columns) + column, gamma_sums);
  store_floats(partial_of(pass.partial, kBetaSums, columns) + column, beta_sums);
  store_floats(partial_of(pass.partial, kBiasSums, columns) + column, bias_sums);
}

void check(LayerNormShape shape, const char* kernel) {
  require(shape.rows > 0, kernel, "at least one row");
  require(shape.columns > 0 && shape.columns % kPack == 0 && shape.columns <= kMaxColumns, kernel,
          "columns that are a multiple of 8, at most 2048");
}

// Calls `start` with the smallest constant of 1, 2, 3, 4, 5, 7 and 8 that is at least `least`: a
// row has so many packs for each lane of a warp, or so many warps with one pack a lane.
template <class Start>
void dispatch(int least, const Start& start) {
  if (least <= 1) return start(std::integral_constant<int, 1>{});
  if (least <= 2) return start(std::integral_constant<int, 2>{});
  if (least <= 3) return start(std::integral_constant<int, 3>{});
  if (least <= 4) return start(std::integral_constant<int, 4>{});
  if (least <= 5) return start(std::integral_constant<int, 5>{});
  if (least <= 7) return start(std::integral_constant<int, 7>{});
  start(std::integral_constant<int, 8>{});
}

int warps_of(int columns) {
  return (columns / kPack + kWarp - 1) / kWarp;
}

// As many as are resident at a time, and not so many that adding up their sums, a row of partial
// sums each, takes longer than making them.
int backward_blocks(LayerNormShape shape) {
  int resident = 1;
  dispatch(warps_of(shape.columns),
           [&](auto warps) { resident = resident_blocks(decltype(warps)::value * kWarp); });
  constexpr int kLeastRows = 2 * kRowsAtOnce;
  return std::min((shape.rows + kLeastRows - 1) / kLeastRows, resident * multiprocessors());
}

}  // namespace

void layer_norm_forward(const LayerNormForward& pass, LayerNormShape shape, Stream stream) {
  check(shape, "layer_norm_forward");
  const auto start = [&](auto kernel) {
    int resident = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kForwardThreads, 0);
    const int blocks = std::min((shape.rows + kForwardWarps - 1) / kForwardWarps,
                                std::max(resident, 1) * multiprocessors());
    kernel<<<blocks, kForwardThreads, 0, stream>>>(pass, shape.rows, shape.columns);
  };
  dispatch(warps_of(shape.columns), [&](auto packs) {
    constexpr int kPacks = decltype(packs)::value;
    pass.addend != nullptr ? start(forward_kernel<kPacks, true>)
                           : start(forward_kernel<kPacks, false>);
  });
  check_launch("layer_norm_forward");
}

std::int64_t layer_norm_backward_scratch(LayerNormShape shape) {
  return std::int64_t{kSumKinds} * backward_blocks(shape) * shape.columns;
}

UnfinishedSums layer_norm_backward(const LayerNormBackward& pass, LayerNormShape shape,
                                   Stream stream) {
  check(shape, "layer_norm_backward");
  const int blocks = backward_blocks(shape);
  dispatch(warps_of(shape.columns), [&](auto warps) {
    constexpr int kThreads = decltype(warps)::value * kWarp;
    backward_kernel<kThreads><<<blocks, kThreads, 0, stream>>>(pass, shape.rows, shape.columns);
  });
  check_launch("layer_norm_backward");
  UnfinishedSums sums{.partial = pass.partial, .blocks = blocks, .columns = shape.columns};
  sums.out[kGammaSums] = pass.dgamma;
  sums.out[kBetaSums] = pass.dbeta;
  sums.out[kBiasSums] = pass.dbias;
  return sums;
}

}  // namespace lockstep::kernels
