#include "models/transformer_layers.h"

#include <optional>

#include <ATen/ops/dropout.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/TensorOperators.h>

namespace lockstep {
namespace {

constexpr double kNormEpsilon = 1e-6;

at::Tensor dropped(const at::Tensor& x, double probability) {
  return probability > 0 ? at::dropout(x, probability, /*train=*/true) : x;
}

// [B, T, d_model] to [B, heads, T, head size].
at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor mix(const at::Tensor& query, const KeyValueCache::Layer& known, const at::Tensor& mask,
               const AttentionWeights& weights, double dropout) {
  const at::Tensor mixed = at::scaled_dot_product_attention(
      query, known.keys, known.values, mask.defined() ? std::optional(mask) : std::nullopt, dropout,
      /*is_causal=*/false);
  const at::Tensor joined =
      mixed.transpose(1, 2).reshape({query.size(0), query.size(2), query.size(1) * query.size(3)});
  return at::linear(joined, weights.w_o);
}

at::Tensor multi_head_attention(const at::Tensor& x, const at::Tensor& looked_at,
                                const at::Tensor& mask, const AttentionWeights& weights,
                                const LayerOptions& options) {
  const at::Tensor query = split_heads(at::linear(x, weights.w_q), options.heads);
  return mix(query, keys_and_values(looked_at, weights, options.heads), mask, weights,
             options.dropout);
}

at::Tensor feed_forward(const at::Tensor& x, const FeedForwardWeights& weights, double dropout) {
  const at::Tensor inner = at::relu(at::linear(x, weights.weight_1, weights.bias_1));
  return at::linear(dropped(inner, dropout), weights.weight_2, weights.bias_2);
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const NormWeights& weights) {
  return at::layer_norm(x, {x.size(-1)}, weights.alpha, weights.bias, kNormEpsilon);
}

KeyValueCache::Layer keys_and_values(const at::Tensor& memory, const AttentionWeights& weights,
                                     std::int64_t heads) {
  return {.keys = split_heads(at::linear(memory, weights.w_k), heads),
          .values = split_heads(at::linear(memory, weights.w_v), heads)};
}

at::Tensor encoder_layer(const at::Tensor& input, const at::Tensor& mask, const EncoderLayer& layer,
                         const LayerOptions& options) {
  at::Tensor x = input;
  const at::Tensor normed = layer_norm(x, layer.norms[0]);
  x = x + dropped(multi_head_attention(normed, normed, mask, layer.self_attention, options),
                  options.dropout);
  return x +
         dropped(feed_forward(layer_norm(x, layer.norms[1]), layer.feed_forward, options.dropout),
                 options.dropout);
}

at::Tensor decoder_layer(const at::Tensor& input, const at::Tensor& mask, const at::Tensor& memory,
                         const at::Tensor& memory_mask, const DecoderLayer& layer,
                         const LayerOptions& options) {
  at::Tensor x = input;
  const at::Tensor normed = layer_norm(x, layer.norms[0]);
  x = x + dropped(multi_head_attention(normed, normed, mask, layer.self_attention, options),
                  options.dropout);
  x = x + dropped(multi_head_attention(layer_norm(x, layer.norms[1]), memory, memory_mask,
                                       layer.cross_attention, options),
                  options.dropout);
  return x +
         dropped(feed_forward(layer_norm(x, layer.norms[2]), layer.feed_forward, options.dropout),
                 options.dropout);
}

at::Tensor decoder_layer_step(const at::Tensor& input, std::int64_t place,
                              KeyValueCache::Layer& own, const KeyValueCache::Layer& memory,
                              const at::Tensor& memory_mask, const DecoderLayer& layer,
                              const LayerOptions& options) {
  at::Tensor x = input;
  const at::Tensor normed = layer_norm(x, layer.norms[0]);
  const KeyValueCache::Layer added = keys_and_values(normed, layer.self_attention, options.heads);
  own.keys.narrow(2, place, 1).copy_(added.keys);
  own.values.narrow(2, place, 1).copy_(added.values);
  const KeyValueCache::Layer known = {.keys = own.keys.narrow(2, 0, place + 1),
                                      .values = own.values.narrow(2, 0, place + 1)};
  const at::Tensor query = split_heads(at::linear(normed, layer.self_attention.w_q), options.heads);
  x = x + mix(query, known, /*mask=*/{}, layer.self_attention, options.dropout);
  const at::Tensor asking = split_heads(
      at::linear(layer_norm(x, layer.norms[1]), layer.cross_attention.w_q), options.heads);
  x = x + mix(asking, memory, memory_mask, layer.cross_attention, options.dropout);
  return x + feed_forward(layer_norm(x, layer.norms[2]), layer.feed_forward, options.dropout);
}

}  // namespace lockstep
