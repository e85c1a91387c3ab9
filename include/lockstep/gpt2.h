#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include "lockstep/deferred.h"
#include "lockstep/gpt2_config.h"

namespace lockstep {

struct Gpt2Options {
  /// Keep only what goes into each block and compute the inside of the block again in backward: a
  /// fraction of the memory for a third more work. The result has the same bits, but for
  /// attention on a GPU where its backward adds in no order (docs/gpt2.md).
  bool activation_checkpointing = false;
  /// Compute the head with its vocabulary rounded up to a multiple of this: matrix products of some
  /// devices like 64 or 128. Weights, files and logits keep the vocabulary's own size.
  std::int64_t pad_vocab_to_multiple_of = 1;
  /// On a GPU, under Autocast to bfloat16, forward(ids, labels) computes with kernels of our own
  /// where model and shape fit them (float32 weights, no dropout, gelu_new; see docs/gpt2.md). In
  /// training it says once why they do not. false: always with ATen's operators.
  bool fused = true;
  /// Of the initial weights, which depend on nothing else.
  std::uint64_t seed = 0;
  /// Parameters get no memory: the model is for ShardedDataParallel, which makes or reads one after
  /// the other and keeps parts (lockstep/deferred.h).
  bool deferred = false;
};

/// The sum of the losses of some tokens and how many they are.
struct Gpt2Loss {
  at::Tensor sum;  // one float32, with its graph
  /// Labels that are not kIgnoredLabel. Not a number while a CUDA graph is recorded: nobody knows
  /// yet.
  double count = 0;
  at::Tensor counted = {};  // the same on the device, while one is recorded
};

/// Labels of tokens that no loss is taken of.
inline constexpr std::int64_t kIgnoredLabel = -100;

class FusedGpt2;
struct Gpt2Weights;
struct KeyValueCache;

/// GPT-2: a causal Transformer over token ids.
///
///     lockstep::Gpt2 model(lockstep::Gpt2Config::named("gpt2"));
///     lockstep::Gpt2Loss loss = model->forward(ids, labels);
///     (loss.sum / loss.count).backward();
///
/// Parameters have Hugging Face's names without the prefix `transformer.`, and its order:
/// "wte.weight", "wpe.weight", "h.0.ln_1.weight", ..., "h.0.attn.c_attn.weight" (Conv1D's layout,
/// [in, out]), ..., and "lm_head.weight" at the end where the head is not tied. Weights may be
/// float32 or bfloat16; under Autocast, float32 weights compute in bfloat16. Sums inside the
/// softmax and the loss are float32 always.
///
/// Thread rule: as for any module, one thread.
class Gpt2Impl : public torch::nn::Module, public DeferredModule {
 public:
  /// With GPT-2's initialisation. Throws InvalidArgument.
  explicit Gpt2Impl(const Gpt2Config& config, const Gpt2Options& options = {});

  /// Logits [B, T, vocab_size] for ids [B, T] of type int64. Throws InvalidArgument for more than
  /// n_positions tokens in a row.
  at::Tensor forward(const at::Tensor& ids);

  /// The loss of predicting labels[b, t] from ids[b, 0..t]: labels are the next tokens, shifted
  /// already (Hugging Face's shift_labels), or kIgnoredLabel. The gradient of logits is computed on
  /// the way, so one backward is possible. But for the fused path, logits exist for a few rows at a
  /// time, and only of labels that count.
  Gpt2Loss forward(const at::Tensor& ids, const at::Tensor& labels);

  /// Logits [B, vocab_size] of what follows the last token, for ids [B, T] that continue what the
  /// cache has seen; see lockstep/generate.h. Without a gradient.
  at::Tensor next_logits(const at::Tensor& ids, KeyValueCache& cache);

  /// Gives the vocabulary another size. New embeddings are the mean of the old ones. Call it before
  /// an optimizer or DistributedDataParallel is made: gradients are dropped.
  void resize_token_embeddings(std::int64_t vocab_size);

  /// Gives all three dropouts of the configuration this probability. Throws InvalidArgument for one
  /// that is not in [0, 1).
  void set_dropout(double probability);

  const Gpt2Config& config() const { return config_; }
  const Gpt2Options& options() const { return options_; }
  void set_activation_checkpointing(bool enabled) { options_.activation_checkpointing = enabled; }

  void make_parameters(const Take& take) const override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  struct Uninitialised {};
  Gpt2Impl(const Gpt2Config& config, const Gpt2Options& options, Uninitialised);
  friend std::shared_ptr<Gpt2Impl> make_uninitialised_gpt2(const Gpt2Config& config,
                                                           const Gpt2Options& options);
  friend class Gpt2 load_gpt2(const std::string& directory, const Gpt2Options& options);

  /// How a parameter begins: normal with this deviation, or all of one value.
  struct Beginning {
    const at::Tensor& parameter;
    double deviation = 0;
    double value = 0;
  };
  std::vector<Beginning> beginnings() const;
  void initialise();
  void check_ids(const at::Tensor& ids, std::int64_t past) const;
  at::Tensor hidden_states(const at::Tensor& ids, KeyValueCache* cache);
  std::string objection_to_fused(const at::Tensor& ids) const;
  bool takes_fused_path(const at::Tensor& ids);

  Gpt2Config config_;
  Gpt2Options options_;
  std::shared_ptr<Gpt2Weights> weights_;
  std::shared_ptr<FusedGpt2> fused_;
  bool said_why_not_fused_ = false;
  std::function<void(const Take&)> source_;  // of the values of a deferred model that is read
};

/// Owns a Gpt2Impl, as torch::nn::Linear does a LinearImpl; copies share it.
class Gpt2 : public torch::nn::ModuleHolder<Gpt2Impl> {
 public:
  using torch::nn::ModuleHolder<Gpt2Impl>::ModuleHolder;
  using Impl = Gpt2Impl;
  explicit Gpt2(const Gpt2Config& config, const Gpt2Options& options = {})
      : ModuleHolder(std::make_shared<Gpt2Impl>(config, options)) {}
};

/// Reads a model in Hugging Face's layout: config.json beside model.safetensors or
/// pytorch_model.bin, or shards of them with their index; names with or without `transformer.`.
/// Weights become float32, whatever the file holds. Nothing in a file is executed. Throws
/// InvalidArgument, in one line with the file, for files that are damaged, missing or do not fit
/// config.json, and SystemError. With `deferred` the files are read later, tensor by tensor.
Gpt2 load_gpt2(const std::string& directory, const Gpt2Options& options = {});

struct Gpt2SaveOptions {
  /// Models with more bytes are written in several files.
  std::int64_t max_shard_bytes = std::int64_t{5} << 30;
};

/// Writes a directory that load_gpt2() and `transformers` read: config.json,
/// generation_config.json, model.safetensors (or shards and their index). Weights keep their type.
/// Each file is there completely or not at all, config.json last. Throws SystemError.
void save_gpt2(const Gpt2& model, const std::string& directory,
               const Gpt2SaveOptions& options = {});

}  // namespace lockstep
