// Reads tokenizer.json.
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/gpt2_scanner.h"
#include "text/json_fields.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

using nlohmann::json;

// ByteLevel is what makes a tokenizer byte-level, wherever in a sequence it stands.
struct Stages {
  std::vector<SplitStage> list;
  bool byte_level = false;
};

std::string pattern_text(const JsonFields& split, SplitStage& stage) {
  const json& pattern = split.object("pattern");
  const JsonFields fields(pattern, split.file(), "pre_tokenizer.pattern");
  stage.kind = pattern.contains("String") ? SplitStage::Kind::literal : SplitStage::Kind::pattern;
  std::string text = fields.string(stage.kind == SplitStage::Kind::literal ? "String" : "Regex");
  if (text.empty()) fields.refuse("is empty, and would match everywhere");
  return text;
}

SplitStage split_stage(const JsonFields& split) {
  SplitStage stage;
  stage.text = pattern_text(split, stage);
  const std::string behavior = split.string("behavior");
  if (behavior != "Isolated" && behavior != "Removed") {
    split.refuse(concat("has behavior '", behavior, "'; Isolated and Removed are known here"));
  }
  stage.invert = split.flag("invert", false);
  stage.remove = behavior == "Removed";
  // The same pieces, and the scanner for them is quicker.
  if (stage.kind == SplitStage::Kind::pattern && stage.text == kGpt2Pattern &&
      (!stage.remove || stage.invert)) {
    return {.kind = SplitStage::Kind::gpt2};
  }
  return stage;
}

void read_pre_tokenizer(const json& value, const std::string& file, Stages& stages, int depth) {
  const JsonFields fields(value, file, "pre_tokenizer");
  const std::string type = fields.string("type");
  if (type == "Sequence") {
    if (depth > 8) fields.refuse("is nested too deeply");
    for (const json& inner : fields.array("pretokenizers")) {
      read_pre_tokenizer(inner, file, stages, depth + 1);
    }
  } else if (type == "ByteLevel") {
    if (stages.byte_level) fields.refuse("has ByteLevel twice");
    stages.byte_level = true;
    if (fields.flag("add_prefix_space", true)) {
      stages.list.push_back({.kind = SplitStage::Kind::prefix_space});
    }
    if (fields.flag("use_regex", true)) stages.list.push_back({});
  } else if (stages.byte_level) {
    fields.refuse(concat("has ", type, " after ByteLevel; only before it is known here"));
  } else if (type == "Split") {
    stages.list.push_back(split_stage(fields));
  } else if (type == "Digits") {
    stages.list.push_back(
        {.kind = SplitStage::Kind::digits, .each_digit = fields.flag("individual_digits", false)});
  } else {
    fields.refuse(concat("is of type '", type,
                         "'; ByteLevel, Split, Digits and Sequences of them are known here"));
  }
}

AddedToken added_token(const json& value, const std::string& file, std::size_t index) {
  const JsonFields fields(value, file, concat("added_tokens[", index, "]"));
  AddedToken token{.id = fields.id("id"),
                   .content = fields.string("content"),
                   .special = fields.flag("special", false),
                   .left_strip = fields.flag("lstrip", false),
                   .right_strip = fields.flag("rstrip", false),
                   .normalized = fields.flag("normalized", true)};
  if (token.content.empty()) fields.refuse("has an empty content");
  if (fields.flag("single_word", false)) fields.refuse("is single_word, which is not known here");
  return token;
}

std::pair<std::string, std::string> merge(const json& value, const std::string& file,
                                          std::size_t index) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (value.is_string()) {  // as files were before 2024
    const std::string& text = value.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  throw InvalidArgument(concat("'", file, "': model.merges[", index, "] is not a pair of tokens"));
}

void read_model(const json& value, const std::string& file, TokenizerSpec& spec) {
  const JsonFields model(value, file, "model");
  if (const std::string type = model.string("type", "BPE"); type != "BPE") {
    model.refuse(concat("is of type '", type, "'; only byte-level BPE is known here"));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string(name, "").empty()) model.refuse(concat("has a ", name, ", unknown here"));
  }
  if (model.flag("byte_fallback", false)) {
    model.refuse("has byte_fallback, as SentencePiece's have; only byte-level BPE is known here");
  }
  if (const json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0) {
    model.refuse("has dropout, which makes ids a matter of chance");
  }
  const std::string unknown = model.string("unk_token", "");
  if (!unknown.empty()) spec.unknown = unknown;
  spec.ignore_merges = model.flag("ignore_merges", false);
  const json& vocabulary = model.object("vocab");
  const JsonFields entries(vocabulary, file, "model.vocab");
  spec.vocabulary.reserve(vocabulary.size());
  for (const auto& [name, id] : vocabulary.items()) {
    spec.vocabulary.emplace_back(name, entries.as_id(id, name));
  }
  const json& merges = model.array("merges");
  spec.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) spec.merges.push_back(merge(merges[i], file, i));
}

// What a template such as "<s> $A </s>" puts before and after a text.
void read_template(const JsonFields& processor, TokenizerSpec& spec) {
  const json& special = processor.object("special_tokens");
  bool after = false;
  for (const json& part : processor.array("single")) {
    if (part.is_object() && part.contains("Sequence")) {
      if (after) processor.refuse("repeats the text");
      after = true;
      continue;
    }
    const JsonFields piece(part, processor.file(), "post_processor.single");
    const std::string name =
        JsonFields(piece.object("SpecialToken"), processor.file(), "SpecialToken").string("id");
    const auto known = special.find(name);
    if (known == special.end()) processor.refuse(concat("names no special token '", name, "'"));
    const JsonFields fields(*known, processor.file(), "post_processor.special_tokens");
    for (const json& id : fields.array("ids")) {
      (after ? spec.after : spec.before).push_back(fields.as_id(id, name));
    }
  }
}

void read_post_processor(const json& value, const std::string& file, TokenizerSpec& spec,
                         int depth) {
  const JsonFields fields(value, file, "post_processor");
  const std::string type = fields.string("type");
  if (type == "TemplateProcessing") {
    read_template(fields, spec);
  } else if (type == "Sequence") {
    if (depth > 8) fields.refuse("is nested too deeply");
    for (const json& inner : fields.array("processors")) {
      read_post_processor(inner, file, spec, depth + 1);
    }
  } else if (type != "ByteLevel") {
    fields.refuse(
        concat("is of type '", type, "'; ByteLevel and TemplateProcessing are known here"));
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(const std::string& text, const std::string& file) {
  const json document = parse_json(text, file);
  const JsonFields fields(document, file, "the file");
  TokenizerSpec spec;
  spec.json = text;
  if (const json* normalizer = fields.find("normalizer"); normalizer != nullptr) {
    throw InvalidArgument(concat("'", file, "': it has a normalizer (",
                                 JsonFields(*normalizer, file, "normalizer").string("type", "?"),
                                 "), which changes texts; only tokenizers without are known here"));
  }
  read_model(fields.object("model"), file, spec);
  Stages stages;
  if (const json* value = fields.find("pre_tokenizer"); value != nullptr) {
    read_pre_tokenizer(*value, file, stages, 0);
  }
  if (!stages.byte_level) {
    throw InvalidArgument(concat("'", file,
                                 "': its pre_tokenizer has no ByteLevel; only "
                                 "byte-level BPE, as GPT-2's, is known here"));
  }
  spec.stages = std::move(stages.list);
  if (const json* added = fields.find("added_tokens"); added != nullptr) {
    const json& list = fields.array("added_tokens");
    for (std::size_t i = 0; i < list.size(); ++i)
      spec.added.push_back(added_token(list[i], file, i));
  }
  if (const json* processor = fields.find("post_processor"); processor != nullptr) {
    read_post_processor(*processor, file, spec, 0);
  }
  return spec;
}

}  // namespace lockstep
