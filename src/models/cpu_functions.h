#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Functions with gradients for float32 on the CPU, where ATen's take several times as long. Each
/// has a question that tells whether it can be used; otherwise ATen's operators are.

bool can_fuse_gelu(const at::Tensor& x);
/// at::gelu(x, "tanh"), with the derivative computed on the way: the exponential is the cost.
at::Tensor fused_gelu_tanh(const at::Tensor& x);

struct FusedAttentionOptions {
  std::int64_t heads = 1;
  double scale = 1;    // of the scores
  double dropout = 0;  // by random numbers that follow from one of the default generator's
};

bool can_fuse_attention(const at::Tensor& qkv, std::int64_t heads);
/// Causal attention: [B, T, 3 * width], queries, keys and values of all heads side by side, to
/// [B, T, width].
at::Tensor fused_causal_attention(const at::Tensor& qkv, const FusedAttentionOptions& options);

}  // namespace lockstep
