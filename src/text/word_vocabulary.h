#pragma once

#include <string>
#include <vector>

#include "lockstep/word_tokenizer.h"
#include "text/added_tokens.h"

namespace lockstep {

/// What the file of a word tokenizer says.
struct WordTokenizer::Vocabulary {
  std::vector<std::string> tokens;  // by id; empty where an id has none
  std::vector<AddedToken> added;    // special ones among them
  std::string unknown = "[UNK]";    // is in `tokens`
};

/// From the text of tokenizer.json. `file` is for messages. Throws InvalidArgument.
WordTokenizer::Vocabulary parse_word_vocabulary(const std::string& text, const std::string& file);

/// The text of tokenizer.json.
std::string word_vocabulary_json(const WordTokenizer::Vocabulary& vocabulary);

}  // namespace lockstep
