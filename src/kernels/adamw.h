#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// What changes from step to step, in device memory, so that a recorded graph stays valid.
struct AdamWStep {
  float learning_rate = 0.0f;
  float bias_correction1 = 1.0f;       // 1 - beta1^step
  float sqrt_bias_correction2 = 1.0f;  // sqrt(1 - beta2^step)
  float gradient_scale = 1.0f;         // gradients are multiplied by it: clipping, loss scaling
};

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;  // of the first `decayed` elements
};

/// One AdamW step over flat buffers, as PyTorch's fused kernel computes it: float32 weights and
/// moments are updated, and the weights are written out as bfloat16, too.
struct AdamW {
  float* weights = nullptr;
  float* first_moments = nullptr;
  float* second_moments = nullptr;
  const float* gradients = nullptr;
  Bf16* out = nullptr;
  std::int64_t count = 0;  // all buffers begin at a multiple of 16 bytes
  std::int64_t decayed = 0;
  const AdamWStep* step = nullptr;
  AdamWOptions options;
};
void adamw(const AdamW& update, Stream stream);

/// norm = the square root of the sum of squares of all gradients; with `max_norm` above 0,
/// step->gradient_scale = min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_. The sum's
/// order depends on the count and the device only. `partial` is scratch of global_norm_scratch()
/// floats.
std::int64_t global_norm_scratch();
void global_norm(const float* gradients, std::int64_t count, float max_norm, float* norm,
                 AdamWStep* step, float* partial, Stream stream);

}  // namespace lockstep::kernels
