#include "kernels/head_loss.h"

#include <cfloat>

#include "kernels/approximate.cuh"
#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = kWarp;  // of a block

// A label's own power, and the largest sum of a row that is not computed again: between the two, a
// factor times a value and a power times a weight are far from the limits of bfloat16.
constexpr float kLabelExponent = -29.0f;
constexpr float kLabelPower = 0x1p-29f;
constexpr float kLargestSum = 0x1p80f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ bool is_learned(const HeadRows& of, std::int64_t label) {
  return label != of.ignored_label && label >= 0 && label < of.vocabulary;
}

// A row's logit, by a warp.
__device__ float logit_of(const HeadRows& of, int row, std::int64_t column) {
  const int lane = threadIdx.x % kWarp;
  const Bf16* const x = of.rows + static_cast<std::int64_t>(row) * of.width;
  const Bf16* const weight = of.head + column * of.width;
  float sum = 0.0f;
  for (int at = lane * kPack; at < of.width; at += kWarp * kPack) {
    float left[kPack], right[kPack];
    unpack(load(x + at), left);
    unpack(load(weight + at), right);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum = fmaf(left[j], right[j], sum);
  }
  return warp_sum(sum);
}

__global__ void __launch_bounds__(kThreads) shift_kernel(HeadRows of, float* shifts) {
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  if (row >= of.count) return;
  const std::int64_t label = of.labels[row];
  float shift = INFINITY;
  if (is_learned(of, label)) shift = logit_of(of, row, label) * kLog2E - kLabelExponent;
  if (threadIdx.x % kWarp == 0) shifts[row] = shift;
}

struct RowLoss {
  float loss, sum;
  float of_label;  // among what adds up to `sum`
};

// A row again, all of whose powers are divided by the largest, by the whole block.
__device__ RowLoss large_loss(const HeadLoss& pass, int row, float* scratch) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t label = pass.of.labels[row];
  float top = -FLT_MAX;
  for (int column = warp; column < pass.of.vocabulary; column += kWarps) {
    top = fmaxf(top, logit_of(pass.of, row, column));
  }
  top = block_max(top, scratch);
  float sum = 0.0f;
  for (int column = warp; column < pass.of.vocabulary; column += kWarps) {
    const float power = power_of_two((logit_of(pass.of, row, column) - top) * kLog2E);
    if (lane != 0) continue;
    sum += power;
    pass.exponentials[static_cast<std::int64_t>(row) * pass.stride + column] = to_bf16(power);
  }
  sum = block_sum(sum, scratch);
  const float below = logit_of(pass.of, row, label) - top;
  return {.loss = logf(sum) - below, .sum = sum, .of_label = power_of_two(below * kLog2E)};
}

// A block has 32 rows: first a lane has one, to add up what tiles left of it, then a warp.
__global__ void __launch_bounds__(kThreads) loss_kernel(HeadLoss pass) {
  __shared__ float added[kWarps][kRows];
  __shared__ float factors[kRows];
  __shared__ float scratch[kWarps];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.x) * kRows;
  const int rows = min(kRows, pass.of.count - first);

  float part = 0.0f;
  if (lane < rows) {
    for (int i = warp; i < pass.parts; i += kWarps) {
      part += pass.partial[static_cast<std::int64_t>(i) * pass.of.count + first + lane];
    }
  }
  added[warp][lane] = part;
  __syncthreads();
  const auto sum_of = [&](int row) {
    float sum = 0.0f;
    for (int i = 0; i < kWarps; ++i) sum += added[i][row];
    return sum;
  };
  const auto tell = [&](int place, const RowLoss& of) {
    const int row = first + place;
    const std::int64_t label = pass.of.labels[row];
    const bool learned = is_learned(pass.of, label);
    factors[place] = learned ? 1.0f / of.sum : 0.0f;
    pass.factors[row] = factors[place];
    pass.losses[row] = learned ? of.loss : label == pass.of.ignored_label ? 0.0f : NAN;
    if (!learned) return;
    pass.exponentials[static_cast<std::int64_t>(row) * pass.stride + label] =
        to_bf16(of.of_label - of.sum);
  };

  if (warp == 0 && lane < rows) {
    const float sum = sum_of(lane);
    tell(lane, {.loss = logf(sum) - kLabelExponent * kLn2, .sum = sum, .of_label = kLabelPower});
  }
  for (int i = 0; i < rows; ++i) {
    if (!(sum_of(i) > kLargestSum)) continue;
    __syncthreads();  // who has told already
    const RowLoss again = large_loss(pass, first + i, scratch);
    __syncthreads();  // who writes the label's power
    if (threadIdx.x == 0) tell(i, again);
  }
  __syncthreads();

  for (int i = warp; i < rows; i += kWarps) {
    const std::int64_t start = static_cast<std::int64_t>(first + i) * pass.of.width;
    for (int at = lane * kPack; at < pass.of.width; at += kWarp * kPack) {
      float values[kPack];
      unpack(load(pass.of.rows + start + at), values);
#pragma unroll
      for (int j = 0; j < kPack; ++j) values[j] *= factors[i];
      store(pass.scaled + start + at, pack(values));
    }
  }
}

void check(const HeadRows& of, const char* kernel) {
  require(of.count > 0 && of.vocabulary > 0, kernel, "at least one row and one token");
  require(of.width > 0 && of.width % kPack == 0, kernel, "a width that is a multiple of 8");
}

}  // namespace

void label_shifts(const HeadRows& of, float* shifts, Stream stream) {
  check(of, "label_shifts");
  shift_kernel<<<(of.count + kWarps - 1) / kWarps, kThreads, 0, stream>>>(of, shifts);
  check_launch("label_shifts");
}

void finish_head_loss(const HeadLoss& pass, Stream stream) {
  check(pass.of, "finish_head_loss");
  require(pass.of.vocabulary <= pass.stride, "finish_head_loss",
          "a stride that is not below the vocabulary");
  loss_kernel<<<(pass.of.count + kRows - 1) / kRows, kThreads, 0, stream>>>(pass);
  check_launch("finish_head_loss");
}

}  // namespace lockstep::kernels
