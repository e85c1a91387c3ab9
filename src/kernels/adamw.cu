#include "kernels/adamw.h"

#include <cmath>

#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kNormBlocksPerMultiprocessor = 8;

// Four at a time, so that a warp reads and writes whole lines.
constexpr int kFour = 4;
constexpr int kFoursPerThread = 4;
constexpr std::int64_t kPiece = std::int64_t{kThreads} * kFour * kFoursPerThread;
// A launch takes its arguments by value, 32 KiB at most.
constexpr int kPartsPerLaunch = 480;

struct Parts {
  AdamWPart parts[kPartsPerLaunch];
  unsigned first_piece[kPartsPerLaunch];
  int count;
};

// The options as the device computes with them.
struct Rules {
  float learning_rate, weight_decay, epsilon;
  float beta2;
  float rest1, rest2;  // 1 - beta, which a float's beta tells to four digits only
  float log_beta1, log_beta2;
  const float* learning_rate_on_device;
  const float* gradient_scale;
  const float* found_inf;
};
static_assert(sizeof(Parts) + sizeof(Rules) < 32764);

// What a step's number makes of them.
struct Factors {
  float decay;      // of a weight
  float step_size;  // of a first moment, over
  float root;       // its second moment's root times this
  float gradient_scale;
};

// 1 - beta^step, exact to the last digits also where the power is nearly 1.
__device__ float correction(float log_beta, float step) {
  return -expm1f(step * log_beta);
}

__device__ Factors factors_of(const Rules& rules, float step) {
  const float rate = rules.learning_rate_on_device != nullptr ? *rules.learning_rate_on_device
                                                              : rules.learning_rate;
  return {.decay = rate * rules.weight_decay,
          .step_size = rate / correction(rules.log_beta1, step),
          .root = 1.0f / sqrtf(correction(rules.log_beta2, step)),
          .gradient_scale = rules.gradient_scale != nullptr ? *rules.gradient_scale : 1.0f};
}

__device__ void step_one(float& weight, float& first, float& second, float gradient,
                         const Rules& rules, const Factors& factors) {
  gradient *= factors.gradient_scale;
  weight -= factors.decay * weight;
  first += rules.rest1 * (gradient - first);
  second = rules.beta2 * second + rules.rest2 * gradient * gradient;
  weight -= factors.step_size * first / (sqrtf(second) * factors.root + rules.epsilon);
}

struct alignas(16) Four {
  float values[kFour];
};
struct alignas(8) FourOut {
  Bf16 values[kFour];
};

__device__ void step_four(const AdamWPart& part, std::int64_t at, const Rules& rules,
                          const Factors& factors) {
  const Four gradients = *reinterpret_cast<const Four*>(part.gradients + at);
  Four weights = *reinterpret_cast<const Four*>(part.weights + at);
  Four first = *reinterpret_cast<const Four*>(part.first_moments + at);
  Four second = *reinterpret_cast<const Four*>(part.second_moments + at);
  FourOut out;
#pragma unroll
  for (int j = 0; j < kFour; ++j) {
    step_one(weights.values[j], first.values[j], second.values[j], gradients.values[j], rules,
             factors);
    out.values[j] = to_bf16(weights.values[j]);
  }
  *reinterpret_cast<Four*>(part.weights + at) = weights;
  *reinterpret_cast<Four*>(part.first_moments + at) = first;
  *reinterpret_cast<Four*>(part.second_moments + at) = second;
  if (part.out != nullptr) *reinterpret_cast<FourOut*>(part.out + at) = out;
}

// A block has a piece of one part, and looks for the part among all of them.
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ Parts all, const __grid_constant__ Rules rules) {
  if (rules.found_inf != nullptr && *rules.found_inf == 1.0f) return;
  int low = 0, high = all.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (all.first_piece[middle] <= blockIdx.x ? low : high) = middle;
  }
  const AdamWPart& part = all.parts[low];
  const Factors factors = factors_of(rules, *part.step);
  const std::int64_t start =
      (blockIdx.x - all.first_piece[low]) * kPiece + static_cast<std::int64_t>(threadIdx.x) * kFour;
#pragma unroll
  for (int i = 0; i < kFoursPerThread; ++i) {
    const std::int64_t at = start + static_cast<std::int64_t>(i) * kThreads * kFour;
    if (at + kFour <= part.count) {
      step_four(part, at, rules, factors);
      continue;
    }
    for (std::int64_t j = at; j < part.count; ++j) {  // what is left of the last four
      step_one(part.weights[j], part.first_moments[j], part.second_moments[j], part.gradients[j],
               rules, factors);
      if (part.out != nullptr) part.out[j] = to_bf16(part.weights[j]);
    }
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
                            float* scale) {
  __shared__ float scratch[kThreads / kWarp];
  float sum = 0.0f;
  for (int at = threadIdx.x; at < blocks; at += kThreads) sum += partial[at];
  sum = block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  *norm = sqrtf(sum);
  if (max_norm > 0.0f) *scale = fminf(1.0f, max_norm / (*norm + 1e-6f));
}

int norm_blocks() {
  return kNormBlocksPerMultiprocessor * multiprocessors();
}

}  // namespace

void adamw(const AdamWPart* parts, int count, const AdamWOptions& options, Stream stream) {
  const Rules rules{.learning_rate = static_cast<float>(options.learning_rate),
                    .weight_decay = static_cast<float>(options.weight_decay),
                    .epsilon = static_cast<float>(options.epsilon),
                    .beta2 = static_cast<float>(options.beta2),
                    .rest1 = static_cast<float>(1.0 - options.beta1),
                    .rest2 = static_cast<float>(1.0 - options.beta2),
                    .log_beta1 = static_cast<float>(std::log(options.beta1)),
                    .log_beta2 = static_cast<float>(std::log(options.beta2)),
                    .learning_rate_on_device = options.learning_rate_on_device,
                    .gradient_scale = options.gradient_scale,
                    .found_inf = options.found_inf};
  for (int done = 0; done < count;) {
    Parts all;
    unsigned pieces = 0;
    for (all.count = 0; all.count < kPartsPerLaunch && done < count; ++done) {
      if (parts[done].count == 0) continue;
      all.parts[all.count] = parts[done];
      all.first_piece[all.count++] = pieces;
      pieces += static_cast<unsigned>((parts[done].count + kPiece - 1) / kPiece);
    }
    if (pieces > 0) adamw_kernel<<<pieces, kThreads, 0, stream>>>(all, rules);
    check_launch("adamw");
  }
}

std::int64_t global_norm_scratch() {
  return norm_blocks();
}

void global_norm(const float* gradients, std::int64_t count, float max_norm, float* norm,
                 float* scale, float* partial, Stream stream) {
  require(count > 0, "global_norm", "at least one element");
  const int blocks = norm_blocks();
  squares_kernel<<<blocks, kThreads, 0, stream>>>(gradients, count, partial);
  norm_kernel<<<1, kThreads, 0, stream>>>(partial, blocks, max_norm, norm, scale);
  check_launch("global_norm");
}

}  // namespace lockstep::kernels
