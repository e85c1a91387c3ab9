#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizer.h"

namespace lockstep {

struct WordTokenizerTraining {
  std::int64_t min_frequency = 2;   // rarer words become the unknown token
  std::int64_t vocab_size = 30000;  // at most, special tokens among them
  // Get the first ids. The first of them stands for words that are not in the vocabulary.
  std::vector<std::string> special_tokens = {"[UNK]", "[PAD]", "[SOS]", "[EOS]"};
};

/// A vocabulary of whole words: the tutorials' tokenizer for translation. Texts are cut into runs
/// of word characters and runs of what is neither those nor white space. Ids and vocabulary equal
/// those of Hugging Face's `tokenizers` with WordLevel, Whitespace and WordLevelTrainer for every
/// text in valid UTF-8; a byte that is not UTF-8 counts as punctuation.
///
/// Copies are cheap and share everything. Several threads may call const members at a time.
class WordTokenizer {
 public:
  /// The words that occur most often, of equals in the order of their bytes. Throws
  /// InvalidArgument for options that cannot work.
  static WordTokenizer train(std::span<const std::string> texts,
                             const WordTokenizerTraining& options = {});

  /// Reads tokenizer.json, or the folder that has one. Throws InvalidArgument, with the file and
  /// the entry, for one that is not of this kind; SystemError where it cannot be read.
  static WordTokenizer load(const std::string& path);

  /// Writes a tokenizer.json that this class and `tokenizers` make an equal tokenizer of. The path
  /// is that of the file, whose folder must be there.
  void save(const std::string& path) const;

  /// Special tokens that stand in the text are one token each, unless the options say otherwise.
  /// Adds nothing around it.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The tokens with a space between them. As in `tokenizers`, special tokens are left out, the
  /// unknown one among them. Throws InvalidArgument for an id that no token has.
  std::string decode(std::span<const std::int32_t> ids,
                     const DecodeOptions& options = {.skip_special_tokens = true}) const;

  std::optional<std::int32_t> id_of(std::string_view token) const;

  /// Empty for an id that no token has.
  std::string_view token_of(std::int32_t id) const;

  /// One more than the largest id: the rows that a model's embedding needs.
  std::int64_t size() const;

  /// For the library's own use.
  struct Vocabulary;
  explicit WordTokenizer(Vocabulary vocabulary);

 private:
  class Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lockstep
