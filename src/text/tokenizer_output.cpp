// The texts of a tokenizer's files.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// Entries as people expect them: by id.
Json vocabulary_object(const TokenizerSpec& spec) {
  auto entries = spec.vocabulary;
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  // Filled as a list: an ordered object would look for a name among all others each time.
  Json::object_t object;
  object.reserve(entries.size());
  for (auto& [name, id] : entries) object.push_back({std::move(name), id});
  return Json(std::move(object));
}

Json byte_level(bool add_prefix_space, bool trim_offsets) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", true}};
}

Json added_tokens(const TokenizerSpec& spec) {
  Json list = Json::array();
  for (const AddedToken& token : spec.added) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", false},
                    {"lstrip", token.left_strip},
                    {"rstrip", token.right_strip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

}  // namespace

std::string tokenizer_json_of(const TokenizerSpec& spec) {
  // Only a tokenizer.json can say more than what is written here.
  if (!spec.json.empty()) return spec.json;
  Json merges = Json::array();
  for (const auto& [left, right] : spec.merges) merges.push_back({left, right});
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", spec.ignore_merges}};
  if (spec.unknown) model["unk_token"] = *spec.unknown;
  model["vocab"] = vocabulary_object(spec);
  model["merges"] = std::move(merges);
  Json file = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added_tokens(spec)},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level(false, true)},
               {"post_processor", byte_level(true, false)},
               {"decoder", byte_level(true, true)}};
  file["model"] = std::move(model);
  return file.dump(1) + "\n";
}

std::string tokenizer_config_of(const TokenizerSpec& spec) {
  if (!spec.config_json.empty()) return spec.config_json;
  Json config = {{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", false}};
  if (spec.end_of_text) {
    for (const char* name : {"bos_token", "eos_token", "unk_token"})
      config[name] = *spec.end_of_text;
  }
  return config.dump(1) + "\n";
}

std::string vocabulary_json_of(const TokenizerSpec& spec) {
  return vocabulary_object(spec).dump() + "\n";
}

std::string merges_text_of(const TokenizerSpec& spec) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : spec.merges) text += left + " " + right + "\n";
  return text;
}

}  // namespace lockstep
