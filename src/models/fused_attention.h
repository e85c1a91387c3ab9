#pragma once

#include "kernels/attention.h"
#include "models/fused_ops.h"

/// Causal self-attention of all heads, on rows of queries, keys and values.
namespace lockstep::fused {

/// What computes attention.
enum class AttentionBy {
  cudnn,
  aten,   // which calls cuDNN: for builds without cuDNN's headers, and shapes that it refuses
  tiles,  // our own kernels
};

/// LOCKSTEP_ATTENTION: `auto`, or nothing, for the fastest, `cudnn`, `aten` for cuDNN as builds
/// without its headers call it, or `tiles` for our own kernels wherever they can be used, whose
/// sums have an order. Throws InvalidArgument where it is another.
enum class AttentionChoice { fastest, cudnn, aten, tiles };
AttentionChoice attention_choice();

/// Attention's result and what its gradient needs.
struct Attended {
  AttentionBy by = AttentionBy::cudnn;
  at::Tensor out, log_sum_exp;
  at::Tensor seed, offset;  // ATen's
};

/// `qkv` has 3 * heads * head_size columns.
Attended attend(kernels::Attention& attention, const kernels::AttentionShape& shape,
                const at::Tensor& qkv);

/// The gradient of `qkv`. Its sums may be left to be done; those of queries may be unfinished then.
Summed attention_gradient(kernels::Attention& attention, const kernels::AttentionShape& shape,
                          const at::Tensor& qkv, const Attended& attended,
                          const at::Tensor& gradient);

}  // namespace lockstep::fused
