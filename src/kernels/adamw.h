#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// A parameter, or several that lie one after the other. All memory is float32 on the device, at
/// multiples of 16 bytes.
struct AdamWPart {
  float* weights = nullptr;
  float* first_moments = nullptr;
  float* second_moments = nullptr;
  const float* gradients = nullptr;
  const float* step = nullptr;  // the number of this step, from 1 on
  Bf16* out = nullptr;          // the weights as bfloat16, too; may be null
  std::int64_t count = 0;
};

/// What is null below counts as not given. Numbers that change from step to step are in device
/// memory, so that a recorded graph stays valid.
struct AdamWOptions {
  double learning_rate = 0.0;
  const float* learning_rate_on_device = nullptr;  // instead
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  const float* gradient_scale = nullptr;  // gradients are multiplied by it: clipping
  const float* found_inf = nullptr;       // 1: nothing is done
};

/// One AdamW step over all parts, by the formula of PyTorch's fused kernel (not in its last bits),
/// in one launch for every few hundred of them.
void adamw(const AdamWPart* parts, int count, const AdamWOptions& options, Stream stream);

/// norm = the square root of the sum of squares of all gradients; with `max_norm` above 0, scale =
/// min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_. The sum's order depends on the
/// count and the device only. `partial` is scratch of global_norm_scratch() floats.
std::int64_t global_norm_scratch();
void global_norm(const float* gradients, std::int64_t count, float max_norm, float* norm,
                 float* scale, float* partial, Stream stream);

}  // namespace lockstep::kernels
