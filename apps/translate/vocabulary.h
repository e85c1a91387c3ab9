#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/tokenizer.h"
#include "lockstep/word_tokenizer.h"
#include "options.h"

namespace translate {

/// The marks, which come first in every vocabulary.
inline constexpr std::int32_t kPad = 1, kStart = 2, kEnd = 3;

/// The words of one language, or its byte pairs.
class Vocabulary {
 public:
  /// Made from sentences, as the options say.
  static Vocabulary learn(const std::vector<std::string>& sentences, const Options& options);

  /// Of a run; `language` is a part of the file's name. Throws InvalidArgument and SystemError.
  static Vocabulary load(const std::string& directory, const std::string& language,
                         const Options& options);
  static bool is_saved(const std::string& directory, const std::string& language,
                       const Options& options);
  void save(const std::string& directory, const std::string& language) const;

  /// Without marks.
  std::vector<std::int32_t> encode(const std::string& sentence) const;
  /// Valid UTF-8, whatever the tokens are; marks are left out.
  std::string decode(const std::vector<std::int32_t>& tokens) const;
  std::int64_t size() const;

 private:
  using Kind = std::variant<lockstep::WordTokenizer, lockstep::Tokenizer>;
  explicit Vocabulary(Kind kind) : kind_(std::move(kind)) {}

  Kind kind_;
};

/// As it can be shown: line breaks and other control characters, which a model that has not learnt
/// much may give, become spaces.
std::string on_one_line(std::string text);

}  // namespace translate
