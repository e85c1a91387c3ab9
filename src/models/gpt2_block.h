#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/gpt2_config.h"
#include "models/key_value_cache.h"

namespace lockstep {

struct WeightAndBias {
  at::Tensor weight;
  at::Tensor bias;
};

/// The parameters of one block; they share their memory with the module's.
struct BlockWeights {
  WeightAndBias ln_1;
  WeightAndBias c_attn;
  WeightAndBias attn_proj;
  WeightAndBias ln_2;
  WeightAndBias c_fc;
  WeightAndBias mlp_proj;

  static constexpr std::size_t kCount = 12;
  std::array<at::Tensor, kCount> list() const;
  static BlockWeights from(at::TensorList list);
};

struct BlockOptions {
  std::int64_t heads = 1;
  double attention_scale = 1;
  double epsilon = 1e-5;
  Gpt2Activation activation = Gpt2Activation::gelu_tanh;
  double attention_dropout = 0;  // both 0 outside of training
  double residual_dropout = 0;
};

/// x + attention(norm(x)), then the same with the MLP, on [B, T, E]. With `cached` the tokens look
/// at earlier ones through the cache, otherwise at themselves and those before them in x.
at::Tensor block_forward(const at::Tensor& x, const BlockWeights& weights,
                         const BlockOptions& options, const CachedAttention* cached = nullptr);

/// The same, but keeps nothing but x: backward computes the block again, from the same random
/// numbers and, where `autocast` is set, under autocast to that type.
at::Tensor checkpointed_block_forward(const at::Tensor& x, const BlockWeights& weights,
                                      const BlockOptions& options,
                                      std::optional<at::ScalarType> autocast);

/// x * weight + bias with Conv1D's layout [in, out], for x of any number of dimensions.
at::Tensor conv1d(const at::Tensor& x, const WeightAndBias& weights);

}  // namespace lockstep
