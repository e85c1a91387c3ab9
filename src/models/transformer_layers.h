#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/key_value_cache.h"

namespace lockstep {

/// The parameters of a Transformer; they share their memory with the module's.

struct NormWeights {
  at::Tensor alpha, bias;
};

struct AttentionWeights {
  at::Tensor w_q, w_k, w_v, w_o;  // [d_model, d_model], torch.nn.Linear's layout
};

struct FeedForwardWeights {
  at::Tensor weight_1, bias_1, weight_2, bias_2;
};

struct EncoderLayer {
  AttentionWeights self_attention;
  FeedForwardWeights feed_forward;
  std::array<NormWeights, 2> norms;
};

struct DecoderLayer {
  AttentionWeights self_attention;
  AttentionWeights cross_attention;
  FeedForwardWeights feed_forward;
  std::array<NormWeights, 3> norms;
};

struct TransformerWeights {
  std::vector<EncoderLayer> encoder;
  NormWeights encoder_norm;
  std::vector<DecoderLayer> decoder;
  NormWeights decoder_norm;
  at::Tensor source_embedding, target_embedding;
  at::Tensor source_positions, target_positions;  // [1, longest, d_model]; not trained
  at::Tensor projection_weight, projection_bias;
};

struct LayerOptions {
  std::int64_t heads = 1;
  double dropout = 0;  // 0 outside of training
};

at::Tensor layer_norm(const at::Tensor& x, const NormWeights& weights);

/// Masks are true where a query may look at a key: [B, 1, 1 or T, S].
at::Tensor encoder_layer(const at::Tensor& x, const at::Tensor& mask, const EncoderLayer& layer,
                         const LayerOptions& options);
at::Tensor decoder_layer(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& memory,
                         const at::Tensor& memory_mask, const DecoderLayer& layer,
                         const LayerOptions& options);

/// Of what the encoder gave, for all tokens to come.
KeyValueCache::Layer keys_and_values(const at::Tensor& memory, const AttentionWeights& weights,
                                     std::int64_t heads);

/// One token more for each row, [B, 1, d_model], at the same `place` of all: its keys and values go
/// into `own`, whose earlier places hold those of the tokens before.
at::Tensor decoder_layer_step(const at::Tensor& x, std::int64_t place, KeyValueCache::Layer& own,
                              const KeyValueCache::Layer& memory, const at::Tensor& memory_mask,
                              const DecoderLayer& layer, const LayerOptions& options);

}  // namespace lockstep
