#pragma once

#include "kernels/attention.h"
#include "kernels/unfinished_sums.h"

namespace lockstep::kernels {

/// Causal self-attention (attention.h) by kernels of our own, for Hopper. Two runs have the same
/// bits: gradients of queries are added up in a fixed order.

/// Whether the current device is one, heads have 64 columns, and tokens are a multiple of 128.
bool has_tile_attention(const AttentionShape& shape);

/// Whether there are heads enough to keep the device busy, so that these are also fast.
bool suits_tile_attention(const AttentionShape& shape);

void tile_attention_forward(const AttentionShape& shape, const AttentionForward& call,
                            Stream stream);

/// Bytes of scratch, at a multiple of 16, for backward.
std::int64_t tile_attention_scratch(const AttentionShape& shape);

/// The column sums of the gradient of queries are left to be finished: what their bias gets. Where
/// they go is not set yet (attention_bias_gradient() in column_sum.h does that). `partial` is
/// scratch of tile_attention_sums() floats, until then.
std::int64_t tile_attention_sums(const AttentionShape& shape);
[[nodiscard]] UnfinishedSums tile_attention_backward(const AttentionShape& shape,
                                                     const AttentionBackward& call, void* scratch,
                                                     float* partial, Stream stream);

}  // namespace lockstep::kernels
