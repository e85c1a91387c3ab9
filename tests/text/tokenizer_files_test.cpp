#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/tokenizer.h"
#include "tests/core/temporary_folder.h"
#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;
using nlohmann::json;

namespace {

constexpr const char* kText = "then the other cat's 12 gardens<|endoftext|>\n\n  sat";

// tokenizer.json of the small tokenizer, with something changed.
template <typename Change>
std::string changed_file(const TemporaryFolder& folder, Change change) {
  small_tokenizer().save(folder.path());
  json file = json::parse(read_text(folder / "tokenizer.json"));
  change(file);
  const std::string path = folder / "changed.json";
  write_text(path, file.dump());
  return path;
}

template <typename Change>
std::string refusal_of(Change change) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, change);
  return refusal([&] { Tokenizer::load(path); });
}

}  // namespace

TEST(TokenizerFiles, every_form_that_is_saved_gives_an_equal_tokenizer) {
  const Tokenizer original = small_tokenizer();
  const TemporaryFolder folder;
  original.save(folder / "whole");
  std::filesystem::create_directory(folder / "openai");
  std::filesystem::copy_file(folder / "whole/vocab.json", folder / "openai/encoder.json");
  std::filesystem::copy_file(folder / "whole/merges.txt", folder / "openai/vocab.bpe");
  for (const std::string path :
       {"whole", "whole/tokenizer.json", "whole/vocab.json", "openai", "openai/vocab.bpe"}) {
    const Tokenizer loaded = Tokenizer::load(folder / path);
    EXPECT_EQ(loaded.encode(kText), original.encode(kText)) << path;
    EXPECT_EQ(loaded.fingerprint(), original.fingerprint()) << path;
    EXPECT_EQ(loaded.end_of_text(), original.end_of_text()) << path;
  }
  EXPECT_NE(original.fingerprint(), small_tokenizer(280).fingerprint());
}

TEST(TokenizerFiles, what_was_loaded_is_saved_as_it_was) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, [](json& file) {
    file["truncation"] = {{"max_length", 7}};  // something that is not used here
  });
  Tokenizer::load(path).save(folder / "again");
  EXPECT_EQ(read_text(folder / "again/tokenizer.json"), read_text(path));
}

TEST(TokenizerFiles, merges_may_be_texts_as_in_older_files) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, [](json& file) {
    for (json& merge : file["model"]["merges"]) {
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
  });
  EXPECT_EQ(Tokenizer::load(path).encode(kText), small_tokenizer().encode(kText));
}

TEST(TokenizerFiles, the_config_says_which_token_ends_a_text) {
  const TemporaryFolder folder;
  small_tokenizer().save(folder.path());
  write_text(folder / "tokenizer_config.json", R"({"eos_token": {"content": "the"}})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.id_of("the"));
}

TEST(TokenizerFiles, added_tokens_take_white_space_along_where_they_say_so) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, [](json& file) {
    file["added_tokens"].push_back({{"id", 300},
                                    {"content", "<sep>"},
                                    {"lstrip", true},
                                    {"rstrip", true},
                                    {"special", false},
                                    {"normalized", false}});
  });
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_EQ(tokenizer.size(), 301);
  const std::vector<std::int32_t> expected = {tokenizer.id_of("a").value(), 300,
                                              tokenizer.id_of("b").value()};
  EXPECT_EQ(tokenizer.encode("a \u3000<sep>\n b"), expected);
}

TEST(TokenizerFiles, a_template_adds_tokens_around_a_text) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, [](json& file) {
    file["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"B": {"id": "B", "ids": [0], "tokens": ["<|endoftext|>"]}}})");
  });
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_EQ(tokenizer.encode("a").front(), 0);
  EXPECT_EQ(tokenizer.encode("a", {.add_special_tokens = false}), small_tokenizer().encode("a"));
  EXPECT_NE(tokenizer.fingerprint(), small_tokenizer().fingerprint());
}

TEST(TokenizerFiles, other_patterns_are_regular_expressions) {
  const TemporaryFolder folder;
  const std::string path = changed_file(folder, [](json& file) {
    file["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\p{N}{1,2}|[^\\p{N}]"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})");
  });
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_EQ(tokenizer.encode("the").size(), 3U);  // each character is a piece of its own
  for (const std::string text : {"the 12345",
                                 "a\xff\xc3"
                                 "b",
                                 "", "\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(TokenizerFiles, what_is_not_byte_level_bpe_is_refused_by_name) {
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["type"] = "Unigram"; }), "'Unigram'"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["normalizer"] = {{"type", "NFC"}}; }), "(NFC)"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["pre_tokenizer"] = nullptr; }), "ByteLevel"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["pre_tokenizer"]["type"] = "Metaspace"; }),
                  "'Metaspace'"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["dropout"] = 0.1; }), "dropout"));
}

TEST(TokenizerFiles, damage_is_named_with_its_place) {
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"].erase("vocab"); }),
                  "changed.json': model has no field 'vocab'"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["vocab"]["x1"] = -1; }),
                  "gives 'x1' the id -1"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["vocab"]["x1"] = 5; }), "the id 5 to"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["vocab"].erase("a"); }),
                  "lacks 1 of the 256 single bytes"));
  EXPECT_TRUE(has(refusal_of([](json& file) { file["model"]["merges"][3] = "one"; }),
                  "model.merges[3] is not a pair"));
  EXPECT_TRUE(has(refusal_of([](json& file) {
                    file["model"]["merges"].push_back({"q", "zz"});
                  }),
                  "has 'zz' for its right part"));
}

TEST(TokenizerFiles, files_that_are_missing_or_cut_short_are_named) {
  const TemporaryFolder folder;
  EXPECT_TRUE(has(refusal([&] { Tokenizer::load(folder.path()); }), "has no tokenizer"));
  EXPECT_TRUE(has(refusal([&] { Tokenizer::load(folder / "none"); }), "does not exist"));
  write_text(folder / "vocab.json", "{}");
  EXPECT_TRUE(
      has(refusal([&] { Tokenizer::load(folder.path()); }), "merges.txt', which is not there"));
  write_text(folder / "merges.txt", "#version: 0.2\na b\nab\n");
  EXPECT_TRUE(has(refusal([&] { Tokenizer::load(folder.path()); }), "merges.txt': line 3"));
  small_tokenizer().save(folder.path());
  const std::string whole = read_text(folder / "tokenizer.json");
  write_text(folder / "tokenizer.json", whole.substr(0, whole.size() / 2));
  EXPECT_TRUE(has(refusal([&] { Tokenizer::load(folder.path()); }), "is not JSON: wrong at byte"));
}
