#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct TokenizerSpec;

struct EncodeOptions {
  // Add what the tokenizer's own template puts around a text (GPT-2's: nothing).
  bool add_special_tokens = true;
  // true: special tokens that stand in the text are ordinary text; false: each is one token.
  bool split_special_tokens = false;
};

struct EncodeBatchOptions {
  EncodeOptions encode = {};
  int threads = 0;  // 0: as many as there are cores
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

/// Byte-level BPE, as GPT-2 and its successors use it. Ids equal those of Hugging Face's
/// `tokenizers` for every text in valid UTF-8.
///
/// Any bytes can be encoded, and decoding gives them back: bytes that are not UTF-8 are kept and
/// count as characters that are neither letters, digits nor white space (docs/data.md).
///
/// Copies are cheap and share everything. Several threads may call const members at a time.
class Tokenizer {
 public:
  /// Reads a folder as the hub has it, or one file: tokenizer.json, or vocab.json with merges.txt,
  /// or encoder.json with vocab.bpe beside it. Throws InvalidArgument for what cannot be a
  /// byte-level BPE tokenizer, naming the file and the entry; SystemError where a file cannot be
  /// read.
  static Tokenizer load(const std::string& path);

  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// One result a text, in their order.
  std::vector<std::vector<std::int32_t>> encode_batch(std::span<const std::string_view> texts,
                                                      const EncodeBatchOptions& options = {}) const;

  /// The bytes behind the ids. Throws InvalidArgument for an id that no token has.
  std::string decode(std::span<const std::int32_t> ids, const DecodeOptions& options = {}) const;

  /// One more than the largest id: the rows that a model's embedding needs.
  std::int64_t size() const;

  /// By the name that it has in the vocabulary ("Ġthe" for " the"), added tokens included.
  std::optional<std::int32_t> id_of(std::string_view token) const;

  /// The name of a token in the vocabulary; empty for an id that no token has.
  std::string_view token_of(std::int32_t id) const;

  /// The token between documents: eos_token of tokenizer_config.json, otherwise <|endoftext|>.
  std::optional<std::int32_t> end_of_text() const;

  /// Writes tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, from which this class
  /// and `transformers` make an equal tokenizer. Makes the folder where it is missing.
  void save(const std::string& directory) const;

  /// Equal for tokenizers that give equal ids; decided by content, not by files.
  std::uint64_t fingerprint() const;

  /// For the library's own use: from what the files say.
  explicit Tokenizer(TokenizerSpec spec);

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

struct TokenizerTraining {
  std::int64_t vocab_size = 0;     // at least 256 and one for each special token
  std::int64_t min_frequency = 0;  // pairs that occur less often are not merged
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // get the first ids
};

/// Learns a vocabulary from texts: the 256 bytes, then merges of the pair that occurs most often.
/// Equal to what Hugging Face's BpeTrainer learns with the byte-level alphabet. With a vocab_size
/// of 256 and the special tokens it is a tokenizer of single bytes. Throws InvalidArgument.
Tokenizer train_tokenizer(std::span<const std::string_view> texts,
                          const TokenizerTraining& options);

/// The same for texts that come one by one: `next` gives one, or std::nullopt after the last. Each
/// has to stay valid until the next call.
Tokenizer train_tokenizer(const std::function<std::optional<std::string_view>()>& next,
                          const TokenizerTraining& options);

}  // namespace lockstep
