#include "lockstep/transformer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>

#include "lockstep/error.h"
#include "models/decoding_state.h"
#include "models/transformer_layers.h"

namespace lockstep {
namespace {

// A node of the tree of names.
struct NamedNode : torch::nn::Module {
  std::shared_ptr<NamedNode> child(const std::string& name) {
    return register_module(name, std::make_shared<NamedNode>());
  }
  at::Tensor parameter(const std::string& name, at::IntArrayRef sizes) {
    return register_parameter(name, at::empty(sizes));
  }
  at::Tensor linear(const std::string& name, std::int64_t in, std::int64_t out) {
    return child(name)->parameter("weight", {out, in});
  }
  NormWeights norm(const std::string& name, std::int64_t width) {
    const auto node = child(name);
    return {.alpha = node->parameter("alpha", {width}), .bias = node->parameter("bias", {width})};
  }
  AttentionWeights attention(const std::string& name, std::int64_t width) {
    const auto node = child(name);
    const auto square = [&](const char* matrix) { return node->linear(matrix, width, width); };
    AttentionWeights weights;
    weights.w_q = square("w_q");
    weights.w_k = square("w_k");
    weights.w_v = square("w_v");
    weights.w_o = square("w_o");
    return weights;
  }
  FeedForwardWeights feed_forward(const std::string& name, const TransformerConfig& config) {
    const auto node = child(name), first = node->child("linear_1"),
               second = node->child("linear_2");
    FeedForwardWeights weights;
    weights.weight_1 = first->parameter("weight", {config.d_ff, config.d_model});
    weights.bias_1 = first->parameter("bias", {config.d_ff});
    weights.weight_2 = second->parameter("weight", {config.d_model, config.d_ff});
    weights.bias_2 = second->parameter("bias", {config.d_model});
    return weights;
  }
  template <std::size_t count>
  void residual_norms(std::array<NormWeights, count>& norms, std::int64_t width) {
    const auto list = child("residual_connections");
    for (std::size_t i = 0; i < count; ++i) {
      norms[i] = list->child(std::to_string(i))->norm("norm", width);
    }
  }
};

// Waves of growing length, as the paper has them; the operators are the tutorial's, for its bits.
at::Tensor sinusoids(std::int64_t longest, std::int64_t width) {
  const auto floats = at::TensorOptions(at::kFloat);
  const at::Tensor position = at::arange(longest, floats).unsqueeze(1);
  const at::Tensor rate =
      at::exp(at::arange(0, width, 2, floats) * (-std::log(10000.0) / static_cast<double>(width)));
  at::Tensor waves = at::zeros({longest, width}, floats);
  waves.slice(1, 0, width, 2).copy_(at::sin(position * rate));
  waves.slice(1, 1, width, 2).copy_(at::cos(position * rate.narrow(0, 0, width / 2)));
  return waves.unsqueeze(0);
}

void xavier(const at::Tensor& matrix, const at::Generator& generator) {
  const double bound = std::sqrt(6.0 / static_cast<double>(matrix.size(0) + matrix.size(1)));
  at::Tensor(matrix).uniform_(-bound, bound, generator);
}

// As torch.nn.Linear begins, by what goes in.
void initial_bias(const at::Tensor& bias, std::int64_t in, const at::Generator& generator) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  at::Tensor(bias).uniform_(-bound, bound, generator);
}

}  // namespace

void TransformerConfig::check() const {
  const auto refuse = [](const char* name, auto value, const std::string& rule) {
    throw InvalidArgument(concat("Transformer: ", name, " is ", value, "; it must be ", rule));
  };
  const std::pair<const char*, std::int64_t> sizes[] = {{"source_vocab_size", source_vocab_size},
                                                        {"target_vocab_size", target_vocab_size},
                                                        {"source_seq_len", source_seq_len},
                                                        {"target_seq_len", target_seq_len},
                                                        {"d_model", d_model},
                                                        {"layers", layers},
                                                        {"heads", heads},
                                                        {"d_ff", d_ff}};
  for (const auto& [name, value] : sizes) {
    if (value < 1) refuse(name, value, "at least 1");
  }
  if (d_model % heads != 0) {
    refuse("d_model", d_model, concat("a multiple of heads, which is ", heads));
  }
  if (!(dropout >= 0 && dropout < 1)) refuse("dropout", dropout, "at least 0 and below 1");
  if (pad_id < 0 || pad_id >= std::min(source_vocab_size, target_vocab_size)) {
    refuse("pad_id", pad_id, "in both vocabularies");
  }
}

TransformerImpl::TransformerImpl(const TransformerConfig& config, const TransformerOptions& options)
    : torch::nn::Module("Transformer"),
      config_(config),
      options_(options),
      weights_(std::make_shared<TransformerWeights>()) {
  config_.check();
  if (!(options_.label_smoothing >= 0 && options_.label_smoothing < 1)) {
    throw InvalidArgument(concat("Transformer: label_smoothing is ", options_.label_smoothing,
                                 "; it must be at least 0 and below 1"));
  }
  const std::int64_t width = config_.d_model;
  const auto child = [this](const char* name) {
    return register_module(name, std::make_shared<NamedNode>());
  };
  TransformerWeights& weights = *weights_;
  const auto encoder = child("encoder"), encoder_layers = encoder->child("layers");
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const auto node = encoder_layers->child(std::to_string(i));
    EncoderLayer& layer = weights.encoder.emplace_back();
    layer.self_attention = node->attention("self_attention_block", width);
    layer.feed_forward = node->feed_forward("feed_forward_block", config_);
    node->residual_norms(layer.norms, width);
  }
  weights.encoder_norm = encoder->norm("norm", width);
  const auto decoder = child("decoder"), decoder_layers = decoder->child("layers");
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const auto node = decoder_layers->child(std::to_string(i));
    DecoderLayer& layer = weights.decoder.emplace_back();
    layer.self_attention = node->attention("self_attention_block", width);
    layer.cross_attention = node->attention("cross_attention_block", width);
    layer.feed_forward = node->feed_forward("feed_forward_block", config_);
    node->residual_norms(layer.norms, width);
  }
  weights.decoder_norm = decoder->norm("norm", width);
  const auto table = [&](const char* name, std::int64_t rows) {
    return child(name)->child("embedding")->parameter("weight", {rows, width});
  };
  weights.source_embedding = table("src_embed", config_.source_vocab_size);
  weights.target_embedding = table("tgt_embed", config_.target_vocab_size);
  const auto positions = [&](const char* name, std::int64_t longest) {
    return child(name)->register_buffer("pe", sinusoids(longest, width));
  };
  weights.source_positions = positions("src_pos", config_.source_seq_len);
  weights.target_positions = positions("tgt_pos", config_.target_seq_len);
  const auto projection = child("projection_layer")->child("proj");
  weights.projection_weight = projection->parameter("weight", {config_.target_vocab_size, width});
  weights.projection_bias = projection->parameter("bias", {config_.target_vocab_size});

  const at::NoGradGuard no_graph;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed);
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    const at::Tensor& parameter = item.value();
    if (parameter.dim() > 1) {
      xavier(parameter, generator);
    } else if (name.ends_with("norm.alpha")) {
      at::Tensor(parameter).fill_(1);
    } else if (name.ends_with("norm.bias")) {
      at::Tensor(parameter).zero_();
    } else {
      initial_bias(parameter, name.ends_with("linear_2.bias") ? config_.d_ff : width, generator);
    }
  }
}

void TransformerImpl::check_tokens(const char* what, const at::Tensor& tokens,
                                   std::int64_t vocabulary, std::int64_t longest) const {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("Transformer: ", what, " is ", tokens.scalar_type(), " of shape ",
                                 tokens.sizes(), "; it must be Long of shape [batch, tokens]"));
  }
  if (tokens.size(1) > longest) {
    throw InvalidArgument(concat("Transformer: ", what, " has ", tokens.size(1),
                                 " tokens in a row; the model has positions for ", longest));
  }
  // A device would stop at such a token by itself, with less to say, and must not be waited for.
  if (!tokens.is_cpu() || tokens.numel() == 0) return;
  const auto [smallest, largest] = tokens.aminmax();
  const std::int64_t low = smallest.item<std::int64_t>(), high = largest.item<std::int64_t>();
  if (low < 0 || high >= vocabulary) {
    throw InvalidArgument(concat("Transformer: token ", low < 0 ? low : high, " of ", what,
                                 " is not in the vocabulary, which has ", vocabulary));
  }
}

at::Tensor TransformerImpl::not_padding(const at::Tensor& tokens) const {
  return tokens.ne(config_.pad_id).unsqueeze(1).unsqueeze(1);
}

at::Tensor TransformerImpl::embed(const at::Tensor& table, const at::Tensor& positions,
                                  const at::Tensor& tokens, std::int64_t first) const {
  const double scale = std::sqrt(static_cast<double>(config_.d_model));
  const at::Tensor x =
      at::embedding(table, tokens) * scale + positions.narrow(1, first, tokens.size(1));
  return dropout() > 0 ? at::dropout(x, dropout(), /*train=*/true) : x;
}

at::Tensor TransformerImpl::encode(const at::Tensor& source) {
  check_tokens("source", source, config_.source_vocab_size, config_.source_seq_len);
  at::Tensor x = embed(weights_->source_embedding, weights_->source_positions, source, /*first=*/0);
  const at::Tensor mask = not_padding(source);
  const LayerOptions options{.heads = config_.heads, .dropout = dropout()};
  for (const EncoderLayer& layer : weights_->encoder) x = encoder_layer(x, mask, layer, options);
  return layer_norm(x, weights_->encoder_norm);
}

at::Tensor TransformerImpl::decode(const at::Tensor& memory, const at::Tensor& source,
                                   const at::Tensor& target) {
  check_tokens("target", target, config_.target_vocab_size, config_.target_seq_len);
  at::Tensor x = embed(weights_->target_embedding, weights_->target_positions, target, /*first=*/0);
  const std::int64_t tokens = target.size(1);
  const at::Tensor earlier =
      at::ones({tokens, tokens}, target.options().dtype(at::kBool)).tril().unsqueeze(0);
  const at::Tensor mask = not_padding(target).logical_and(earlier);
  const at::Tensor memory_mask = not_padding(source);
  const LayerOptions options{.heads = config_.heads, .dropout = dropout()};
  for (const DecoderLayer& layer : weights_->decoder) {
    x = decoder_layer(x, mask, memory, memory_mask, layer, options);
  }
  return layer_norm(x, weights_->decoder_norm);
}

at::Tensor TransformerImpl::project(const at::Tensor& decoded) {
  return at::linear(decoded, weights_->projection_weight, weights_->projection_bias);
}

at::Tensor TransformerImpl::forward(const at::Tensor& source, const at::Tensor& target) {
  return project(decode(encode(source), source, target));
}

TransformerLoss TransformerImpl::forward(const at::Tensor& source, const at::Tensor& target,
                                         const at::Tensor& labels) {
  if (labels.sizes() != target.sizes() || labels.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("Transformer: labels are ", labels.scalar_type(), " of shape ",
                                 labels.sizes(), "; they must be Long of the target's shape ",
                                 target.sizes()));
  }
  const at::Tensor logits = forward(source, target);
  const at::Tensor sum = at::cross_entropy_loss(
      logits.reshape({-1, config_.target_vocab_size}).to(at::kFloat), labels.reshape({-1}),
      /*weight=*/{}, at::Reduction::Sum, config_.pad_id, options_.label_smoothing);
  return {.sum = sum,
          .count = static_cast<double>(labels.ne(config_.pad_id).sum().item<std::int64_t>())};
}

std::shared_ptr<DecodingState> TransformerImpl::begin_decoding(const at::Tensor& source) {
  const at::NoGradGuard no_graph;
  const at::Tensor memory = encode(source);
  auto state = std::make_shared<DecodingState>();
  state->memory_mask = not_padding(source);
  const auto empty = [&] {
    return at::empty(
        {source.size(0), config_.heads, config_.target_seq_len, config_.d_model / config_.heads},
        memory.options());
  };
  for (const DecoderLayer& layer : weights_->decoder) {
    state->memory.push_back(keys_and_values(memory, layer.cross_attention, config_.heads));
    state->own.push_back({.keys = empty(), .values = empty()});
  }
  return state;
}

at::Tensor TransformerImpl::next_logits(const at::Tensor& tokens, DecodingState& state) {
  const at::NoGradGuard no_graph;
  const at::Tensor column = tokens.unsqueeze(1);
  check_tokens("target", column, config_.target_vocab_size, config_.target_seq_len - state.length);
  at::Tensor x =
      embed(weights_->target_embedding, weights_->target_positions, column, state.length);
  const LayerOptions options{.heads = config_.heads, .dropout = dropout()};
  for (std::size_t i = 0; i < weights_->decoder.size(); ++i) {
    x = decoder_layer_step(x, state.length, state.own[i], state.memory[i], state.memory_mask,
                           weights_->decoder[i], options);
  }
  ++state.length;
  return project(layer_norm(x, weights_->decoder_norm).squeeze(1));
}

std::int64_t TransformerImpl::parameter_count() const {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

std::shared_ptr<torch::nn::Module> TransformerImpl::clone(
    const std::optional<at::Device>& device) const {
  const at::NoGradGuard no_graph;
  const auto copy = std::make_shared<TransformerImpl>(config_, options_);
  const auto take = [&](auto targets, const auto& from) {
    for (const auto& item : from) {
      at::Tensor& target = targets[item.key()];
      target.set_data(device ? item.value().to(*device, /*non_blocking=*/false, /*copy=*/true)
                             : item.value().clone());
      target.requires_grad_(item.value().requires_grad());
    }
  };
  take(copy->named_parameters(), named_parameters());
  take(copy->named_buffers(), named_buffers());
  copy->train(is_training());
  return copy;
}

void TransformerImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::Transformer(layers=" << config_.layers << ", heads=" << config_.heads
         << ", d_model=" << config_.d_model << ", d_ff=" << config_.d_ff
         << ", vocabularies=" << config_.source_vocab_size << " and " << config_.target_vocab_size
         << ")";
}

}  // namespace lockstep
