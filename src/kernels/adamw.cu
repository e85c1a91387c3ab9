#include "kernels/adamw.h"

#include <algorithm>

#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kNormBlocksPerMultiprocessor = 8;

__device__ void step_one(float& weight, float& first, float& second, float gradient, float decay,
                         const AdamWStep& step, const AdamWOptions& options) {
  weight -= step.learning_rate * decay * weight;
  first = first + (1.0f - options.beta1) * (gradient - first);
  second = options.beta2 * second + (1.0f - options.beta2) * gradient * gradient;
  const float denominator = sqrtf(second) / step.sqrt_bias_correction2 + options.epsilon;
  weight -= step.learning_rate / step.bias_correction1 * first / denominator;
}

__global__ void adamw_kernel(AdamW update) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  if (at >= update.count) return;
  const AdamWStep step = *update.step;
  const AdamWOptions& options = update.options;
  if (at + kPack <= update.count) {
    float weights[kPack], first[kPack], second[kPack], gradients[kPack];
    load_floats(update.gradients + at, gradients);
    load_floats(update.weights + at, weights);
    load_floats(update.first_moments + at, first);
    load_floats(update.second_moments + at, second);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float decay = at + j < update.decayed ? options.weight_decay : 0.0f;
      step_one(weights[j], first[j], second[j], gradients[j] * step.gradient_scale, decay, step,
               options);
    }
    store_floats(update.weights + at, weights);
    store_floats(update.first_moments + at, first);
    store_floats(update.second_moments + at, second);
    store(update.out + at, pack(weights));
    return;
  }
  for (std::int64_t i = at; i < update.count; ++i) {  // what is left of the last pack
    const float decay = i < update.decayed ? options.weight_decay : 0.0f;
    step_one(update.weights[i], update.first_moments[i], update.second_moments[i],
             update.gradients[i] * step.gradient_scale, decay, step, options);
    update.out[i] = to_bf16(update.weights[i]);
  }
}

__global__ void squares_kernel(const float* gradients, std::int64_t count, float* partial) {
  __shared__ float scratch[kThreads / kWarp];
  const std::int64_t packs = count / kPack;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  float sum = 0.0f;
#pragma unroll 4
  for (std::int64_t at = blockIdx.x * kThreads + threadIdx.x; at < packs; at += stride) {
    float values[kPack];
    load_floats(gradients + at * kPack, values);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum += values[j] * values[j];
  }
  if (blockIdx.x == 0 && threadIdx.x < count % kPack) {
    const float value = gradients[packs * kPack + threadIdx.x];
    sum += value * value;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void norm_kernel(const float* partial, int blocks, float max_norm, float* norm,
                            AdamWStep* step) {
  __shared__ float scratch[kThreads / kWarp];
  float sum = 0.0f;
  for (int at = threadIdx.x; at < blocks; at += kThreads) sum += partial[at];
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  *norm = sqrtf(sum);
  if (max_norm > 0.0f) step->gradient_scale = fminf(1.0f, max_norm / (*norm + 1e-6f));
}

int norm_blocks() {
  return kNormBlocksPerMultiprocessor * multiprocessors();
}

}  // namespace

void adamw(const AdamW& update, Stream stream) {
  require(update.count > 0, "adamw", "at least one element");
  const std::int64_t packs = (update.count + kPack - 1) / kPack;
  adamw_kernel<<<static_cast<unsigned>((packs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      update);
  check_launch("adamw");
}

std::int64_t global_norm_scratch() {
  return norm_blocks();
}

void global_norm(const float* gradients, std::int64_t count, float max_norm, float* norm,
                 AdamWStep* step, float* partial, Stream stream) {
  require(count > 0, "global_norm", "at least one element");
  const int blocks = norm_blocks();
  squares_kernel<<<blocks, kThreads, 0, stream>>>(gradients, count, partial);
  norm_kernel<<<1, kThreads, 0, stream>>>(partial, blocks, max_norm, norm, step);
  check_launch("global_norm");
}

}  // namespace lockstep::kernels
