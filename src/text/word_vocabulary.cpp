// The file of a word tokenizer: tokenizer.json, as Hugging Face's `tokenizers` has it.
#include "text/word_vocabulary.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/json_fields.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Gaps between ids are places without a token; a file of a few bytes must not ask for gigabytes.
constexpr std::size_t kMostPlacesPerToken = 16;

std::string shown(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

// What would change the ids and is not done here must not be passed over.
void refuse_other_steps(const JsonFields& root) {
  for (const char* name : {"normalizer", "post_processor", "truncation", "padding", "decoder"}) {
    const json* step = root.find(name);
    if (step == nullptr) continue;
    root.refuse(
        concat("has a ", name, " (", shown(*step).substr(0, 60), "); a word tokenizer has none"));
  }
  const JsonFields cut(root.object("pre_tokenizer"), root.file(), "pre_tokenizer");
  if (cut.string("type") != "Whitespace") {
    root.refuse(concat("has the pre_tokenizer '", cut.string("type"),
                       "'; that of a word tokenizer is Whitespace"));
  }
}

void place_token(std::vector<std::string>& tokens, const std::string& name, std::int32_t id,
                 const JsonFields& fields) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens.size()) tokens.resize(index + 1);
  if (!tokens[index].empty() && tokens[index] != name) {
    fields.refuse(concat("gives the id ", id, " to '", tokens[index], "' and to '", name, "'"));
  }
  tokens[index] = name;
}

std::vector<std::string> read_tokens(const JsonFields& model) {
  const json& vocabulary = model.object("vocab");
  std::vector<std::string> tokens;
  for (const auto& [name, value] : vocabulary.items()) {
    const std::int32_t id = model.as_id(value, name);
    if (name.empty()) model.refuse("has a token that is empty");
    if (static_cast<std::size_t>(id) > kMostPlacesPerToken * (vocabulary.size() + 64)) {
      model.refuse(concat("gives '", name, "' the id ", id, " among ", vocabulary.size(),
                          " tokens; the file is damaged"));
    }
    place_token(tokens, name, id, model);
  }
  return tokens;
}

void read_added_tokens(const JsonFields& root, WordTokenizer::Vocabulary& vocabulary) {
  if (root.find("added_tokens") == nullptr) return;
  const std::vector<std::string> words = vocabulary.tokens;
  for (const json& entry : root.array("added_tokens")) {
    const JsonFields fields(entry, root.file(), "added_tokens");
    AddedToken token{.id = fields.id("id"),
                     .content = fields.string("content"),
                     .special = fields.flag("special", false),
                     .left_strip = fields.flag("lstrip", false),
                     .right_strip = fields.flag("rstrip", false),
                     .normalized = fields.flag("normalized", false)};
    if (token.content.empty()) fields.refuse("has a token that is empty");
    if (fields.flag("single_word", false)) {
      fields.refuse(concat("has '", token.content, "' as single_word, which is not supported"));
    }
    const auto known = std::find(words.begin(), words.end(), token.content);
    const bool elsewhere = known != words.end() && known - words.begin() != token.id;
    const std::size_t places = vocabulary.tokens.size();
    if (elsewhere || static_cast<std::size_t>(token.id) > places + kMostPlacesPerToken) {
      fields.refuse(concat("gives '", token.content, "' the id ", token.id,
                           ", which does not fit the vocabulary of ", places, " tokens"));
    }
    place_token(vocabulary.tokens, token.content, token.id, fields);
    vocabulary.added.push_back(std::move(token));
  }
}

}  // namespace

WordTokenizer::Vocabulary parse_word_vocabulary(const std::string& text, const std::string& file) {
  const json parsed = parse_json(text, file);
  const JsonFields root(parsed, file, "the file");
  const JsonFields model(root.object("model"), file, "model");
  const std::string type = model.string("type", "WordLevel");
  if (type != "WordLevel") {
    model.refuse(concat("is of type '", type, "'; that of a word tokenizer is WordLevel"));
  }
  refuse_other_steps(root);
  WordTokenizer::Vocabulary vocabulary{.tokens = read_tokens(model)};
  vocabulary.unknown = model.string("unk_token");
  const auto& tokens = vocabulary.tokens;
  if (std::find(tokens.begin(), tokens.end(), vocabulary.unknown) == tokens.end()) {
    model.refuse(concat("has the unk_token '", vocabulary.unknown, "', which its vocab lacks"));
  }
  read_added_tokens(root, vocabulary);
  return vocabulary;
}

std::string word_vocabulary_json(const WordTokenizer::Vocabulary& vocabulary) {
  ordered_json::object_t tokens;  // filled as a list, because looking for each name would be slow
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.tokens[id].empty()) tokens.push_back({vocabulary.tokens[id], id});
  }
  ordered_json added = ordered_json::array();
  for (const AddedToken& token : vocabulary.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", token.left_strip},
                     {"rstrip", token.right_strip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", std::move(added)},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", {{"type", "Whitespace"}}},
                             {"post_processor", nullptr},
                             {"decoder", nullptr},
                             {"model",
                              {{"type", "WordLevel"},
                               {"vocab", ordered_json(std::move(tokens))},
                               {"unk_token", vocabulary.unknown}}}};
  return file.dump(2) + "\n";
}

}  // namespace lockstep
