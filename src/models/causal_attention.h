#pragma once

#include <cstdint>

namespace lockstep {

/// Causal attention on float32 in this processor's memory, without copies of the T x T scores.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;  // a multiple of kAttentionStep
  float scale = 1;             // of the scores
  float dropout = 0;           // probability with which a token is not looked at
  std::uint64_t seed = 0;      // of what is dropped; the gradient needs the same

  std::int64_t width() const { return heads * head_size; }
};

inline constexpr std::int64_t kAttentionStep = 16;

/// Whether it beats ATen's on this machine. It was written for the 128-bit vectors of ARM; on x86
/// ATen has kernels for wider ones.
bool causal_attention_is_fast();

/// `qkv` is [batch, tokens, 3, heads, head_size]; `out` [batch, tokens, heads, head_size]; `lse`
/// [batch, heads, tokens], the logarithm of each softmax's denominator, which the gradient needs.
/// Does the heads from `first` to `last`, counted through the batch.
void causal_attention(const AttentionShape& shape, const float* qkv, float* out, float* lse,
                      std::int64_t first, std::int64_t last);

struct AttentionGradient {
  const float* qkv = nullptr;
  const float* out = nullptr;
  const float* lse = nullptr;
  const float* out_gradient = nullptr;
  float* qkv_gradient = nullptr;  // written; nothing of it is read
};
void causal_attention_gradient(const AttentionShape& shape, const AttentionGradient& tensors,
                               std::int64_t first, std::int64_t last);

}  // namespace lockstep
