#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Functions with gradients for float32 on the CPU, where ATen's take several times as long. Each
/// has a question that tells whether it can be used; otherwise ATen's operators are.

bool can_fuse_gelu(const at::Tensor& x);
/// at::gelu(x, "tanh"), with the derivative computed on the way: the exponential is the cost.
at::Tensor fused_gelu_tanh(const at::Tensor& x);

bool can_fuse_attention(const at::Tensor& qkv, std::int64_t heads, double dropout);
/// Causal attention: [B, T, 3 * width], queries, keys and values of all heads side by side, to
/// [B, T, width].
at::Tensor fused_causal_attention(const at::Tensor& qkv, std::int64_t heads, double scale);

}  // namespace lockstep
