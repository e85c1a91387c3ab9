#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

namespace lockstep {

/// The shape of a Transformer; defaults are those of "Attention is all you need".
struct TransformerConfig {
  std::int64_t source_vocab_size = 0;
  std::int64_t target_vocab_size = 0;
  std::int64_t source_seq_len = 350;  // the longest source, marks at both ends included
  std::int64_t target_seq_len = 350;
  std::int64_t d_model = 512;
  std::int64_t layers = 6;  // of the encoder, and as many of the decoder
  std::int64_t heads = 8;
  std::int64_t d_ff = 2048;
  double dropout = 0.1;
  std::int64_t pad_id = 1;  // of both vocabularies; nobody looks at it, and no loss is taken of it

  /// Throws InvalidArgument for values that contradict each other.
  void check() const;
  bool operator==(const TransformerConfig&) const = default;
};

struct TransformerOptions {
  double label_smoothing = 0.1;
  std::uint64_t seed = 0;  // of the initial weights, which depend on nothing else
};

/// The sum of the losses of some tokens and how many they are.
struct TransformerLoss {
  at::Tensor sum;  // one float32, with its graph
  double count = 0;
};

struct DecodingState;
struct TransformerWeights;

/// The encoder-decoder of "Attention is all you need", with a norm before each part and one at the
/// end of each half (x + dropout(part(norm(x)))), as tutorials have it.
///
///     Transformer model(TransformerConfig{.source_vocab_size = 900, .target_vocab_size = 800});
///     TransformerLoss loss = model->forward(source, target, labels);
///     (loss.sum / loss.count).backward();
///
/// Tokens are int64, [B, S] and [B, T], filled up with pad_id. How far a batch is filled up makes
/// no difference beyond rounding.
///
/// Names and order of parameters and buffers are those of the tutorial's Python modules:
/// "encoder.layers.0.self_attention_block.w_q.weight", ..., "encoder.norm.alpha", ...,
/// "src_embed.embedding.weight", "src_pos.pe", ..., "projection_layer.proj.bias". Its norm divides
/// by the unbiased deviation plus epsilon; this one is torch's layer_norm with epsilon 1e-6.
///
/// Thread rule: as for any module, one thread.
class TransformerImpl : public torch::nn::Module {
 public:
  /// Matrices are initialised by Xavier's uniform rule, biases as torch.nn.Linear does. Throws
  /// InvalidArgument.
  explicit TransformerImpl(const TransformerConfig& config, const TransformerOptions& options = {});

  /// What the decoder looks at, [B, S, d_model].
  at::Tensor encode(const at::Tensor& source);
  /// [B, T, d_model] for tokens that begin with the mark of a start.
  at::Tensor decode(const at::Tensor& memory, const at::Tensor& source, const at::Tensor& target);
  /// Logits of the target's vocabulary, on any [..., d_model].
  at::Tensor project(const at::Tensor& decoded);

  /// Logits [B, T, target_vocab_size].
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target);
  /// The smoothed loss of predicting labels[b, t] from source[b] and target[b, 0..t]. Labels that
  /// are pad_id do not count.
  TransformerLoss forward(const at::Tensor& source, const at::Tensor& target,
                          const at::Tensor& labels);

  /// Encodes, and keeps what every further token needs. Without a gradient, in evaluation mode; see
  /// lockstep/beam_search.h.
  std::shared_ptr<DecodingState> begin_decoding(const at::Tensor& source);
  /// Logits [B, target_vocab_size] of what follows; `tokens` [B] are the last ones so far.
  at::Tensor next_logits(const at::Tensor& tokens, DecodingState& state);

  const TransformerConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }
  /// How many numbers are trained.
  std::int64_t parameter_count() const;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void check_tokens(const char* what, const at::Tensor& tokens, std::int64_t vocabulary,
                    std::int64_t longest) const;
  double dropout() const { return is_training() ? config_.dropout : 0; }
  at::Tensor embed(const at::Tensor& table, const at::Tensor& positions, const at::Tensor& tokens,
                   std::int64_t first) const;
  at::Tensor not_padding(const at::Tensor& tokens) const;

  TransformerConfig config_;
  TransformerOptions options_;
  std::shared_ptr<TransformerWeights> weights_;
};

/// Owns a TransformerImpl, as torch::nn::Linear does a LinearImpl; copies share it.
class Transformer : public torch::nn::ModuleHolder<TransformerImpl> {
 public:
  using torch::nn::ModuleHolder<TransformerImpl>::ModuleHolder;
  using Impl = TransformerImpl;
  explicit Transformer(const TransformerConfig& config, const TransformerOptions& options = {})
      : ModuleHolder(std::make_shared<TransformerImpl>(config, options)) {}
};

}  // namespace lockstep
