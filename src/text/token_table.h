#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_spec.h"

namespace lockstep {

struct Token {
  std::string name;   // in the vocabulary
  std::string bytes;  // of the text that it stands for
  bool known = false;
  bool special = false;
};

/// Finds ids by texts without making a std::string of them.
struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};
using IdsByText = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// The tokens of a tokenizer, by id and by name.
class TokenTable {
 public:
  /// Throws InvalidArgument for ids or names that are given twice and templates with unknown
  /// tokens.
  explicit TokenTable(const TokenizerSpec& spec);

  const std::vector<Token>& tokens() const { return tokens_; }
  std::optional<std::int32_t> id_of(std::string_view name) const;

  /// Throws InvalidArgument for merges of unknown tokens, and bytes that no token stands for.
  Bpe make_bpe(const TokenizerSpec& spec) const;

  /// The tokens of the vocabulary by their bytes.
  IdsByText ids_by_bytes(const TokenizerSpec& spec) const;

 private:
  Token& add(const std::string& name, std::int32_t id);

  std::vector<Token> tokens_;  // by id; ids may have gaps
  IdsByText ids_;
};

}  // namespace lockstep
