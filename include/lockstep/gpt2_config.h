#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// What the MLP of a block applies between its two projections.
enum class Gpt2Activation {
  gelu_tanh,  // "gelu_new" in config.json: GPT-2's own
  gelu,       // the exact one
  relu,
  silu,
  tanh,
};

/// The shape of a GPT-2, with the names and defaults of Hugging Face's config.json.
struct Gpt2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;  // the longest sequence
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::optional<std::int64_t> n_inner = std::nullopt;  // unset: 4 * n_embd
  Gpt2Activation activation = Gpt2Activation::gelu_tanh;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  /// The head uses the token embeddings as its weights.
  bool tie_word_embeddings = true;
  std::optional<std::int64_t> bos_token_id = 50256;
  std::optional<std::int64_t> eos_token_id = 50256;

  /// "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", or "tiny": less than a million parameters with
  /// a vocabulary of 512, for tests and demonstrations. Throws InvalidArgument, with the names.
  static Gpt2Config named(const std::string& name);
  static const std::vector<std::string>& names();

  /// Reads a config.json. Throws InvalidArgument, with the file and the key, for one that is not
  /// GPT-2's or asks for what this library does not compute, and SystemError.
  static Gpt2Config from_file(const std::string& path);

  /// The text of a config.json. `dtype` is the name of the weights' type: "float32", "bfloat16".
  std::string to_json(const std::string& dtype = "float32") const;

  /// Throws InvalidArgument for values that contradict each other; `where` begins the message.
  void check(const std::string& where = "Gpt2Config") const;

  std::int64_t inner() const { return n_inner.value_or(4 * n_embd); }
  /// How many numbers are trained.
  std::int64_t parameter_count() const;

  bool operator==(const Gpt2Config&) const = default;
};

}  // namespace lockstep
