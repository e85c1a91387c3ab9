#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/added_tokens.h"
#include "text/splitter.h"

namespace lockstep {

/// What the files of a tokenizer say, before anything is made of it.
struct TokenizerSpec {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;  // names as in the files
  std::vector<std::pair<std::string, std::string>> merges;       // first learnt first
  std::vector<AddedToken> added;
  std::vector<SplitStage> stages = {SplitStage{}};
  std::optional<std::string> unknown;       // stands for a byte that has no token
  bool ignore_merges = false;               // a piece that is a token is that token
  std::vector<std::int32_t> before, after;  // what the template puts around a text
  std::optional<std::string> end_of_text;
  std::string json;         // tokenizer.json as it was read; empty where there was none
  std::string config_json;  // tokenizer_config.json, likewise
};

/// GPT-2's, which files without tokenizer.json do not mark.
inline constexpr const char* kEndOfText = "<|endoftext|>";

/// An id may be at most this: larger ones are a damaged file.
inline constexpr std::int64_t kLargestTokenId = 16'777'215;

/// From the text of tokenizer.json. `file` is for messages. Throws InvalidArgument.
TokenizerSpec parse_tokenizer_json(const std::string& text, const std::string& file);

/// From vocab.json (or encoder.json) and merges.txt (or vocab.bpe). Throws InvalidArgument.
struct VocabularyFiles {
  std::string vocabulary;  // texts
  std::string merges;
  std::string vocabulary_file;  // names, for messages
  std::string merges_file;
};
TokenizerSpec parse_vocabulary(const VocabularyFiles& files);

/// Adds what added_tokens.json and tokenizer_config.json say: more tokens, which one ends a text.
void apply_added_tokens(TokenizerSpec& spec, const std::string& text, const std::string& file);
void apply_tokenizer_config(TokenizerSpec& spec, const std::string& text, const std::string& file);

/// The files that belong to a path (see Tokenizer::load).
TokenizerSpec read_tokenizer_files(const std::string& path);

/// The texts of files to write.
std::string tokenizer_json_of(const TokenizerSpec& spec);
std::string tokenizer_config_of(const TokenizerSpec& spec);
std::string vocabulary_json_of(const TokenizerSpec& spec);
std::string merges_text_of(const TokenizerSpec& spec);

/// Of everything that decides ids; how files write it does not matter.
std::uint64_t fingerprint_of(const TokenizerSpec& spec);

}  // namespace lockstep
