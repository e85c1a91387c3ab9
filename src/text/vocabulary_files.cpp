// Reads vocab.json with merges.txt, added_tokens.json and tokenizer_config.json.
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/json_fields.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

using nlohmann::json;

bool is_added(const TokenizerSpec& spec, const std::string& content) {
  for (const AddedToken& token : spec.added) {
    if (token.content == content) return true;
  }
  return false;
}

std::vector<std::pair<std::string, std::string>> parse_merges(const std::string& text,
                                                              const std::string& file) {
  std::vector<std::pair<std::string, std::string>> merges;
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      throw InvalidArgument(
          concat("'", file, "': line ", line_number, " is not two tokens with a space between"));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

}  // namespace

TokenizerSpec parse_vocabulary(const VocabularyFiles& files) {
  TokenizerSpec spec;
  const json vocabulary = parse_json(files.vocabulary, files.vocabulary_file);
  const JsonFields entries(vocabulary, files.vocabulary_file, "the vocabulary");
  for (const auto& [name, id] : vocabulary.items()) {
    spec.vocabulary.emplace_back(name, entries.as_id(id, name));
    if (name == kEndOfText) {
      spec.added.push_back({.id = spec.vocabulary.back().second, .content = name, .special = true});
    }
  }
  spec.merges = parse_merges(files.merges, files.merges_file);
  return spec;
}

void apply_added_tokens(TokenizerSpec& spec, const std::string& text, const std::string& file) {
  const json tokens = parse_json(text, file);
  const JsonFields entries(tokens, file, "the list");
  for (const auto& [name, id] : tokens.items()) {
    const std::int32_t number = entries.as_id(id, name);
    if (name.empty()) entries.refuse("has a token without a name");
    if (!is_added(spec, name)) spec.added.push_back({.id = number, .content = name});
  }
}

void apply_tokenizer_config(TokenizerSpec& spec, const std::string& text, const std::string& file) {
  const json config = parse_json(text, file);
  const JsonFields fields(config, file, "the file");
  spec.config_json = text;
  // A text, or an object that says more about the token.
  if (const json* token = fields.find("eos_token"); token != nullptr) {
    spec.end_of_text = token->is_object() ? JsonFields(*token, file, "eos_token").string("content")
                                          : fields.string("eos_token");
  }
}

}  // namespace lockstep
