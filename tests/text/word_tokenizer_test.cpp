#include "lockstep/word_tokenizer.h"

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using WordIds = std::vector<std::int32_t>;
using Texts = std::vector<std::string>;

const Texts kTexts = {"the dog, the cat", "the cat: a dog?", "a zebra"};

WordTokenizer small_words() {
  return WordTokenizer::train(kTexts);
}

// A file that is right but for one replacement.
std::string refusal_of_file(const std::string& what, const std::string& by) {
  std::string text = R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 0, "content": "[UNK]", "special": true}], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "dog": 2}, "unk_token": "[UNK]"}})";
  const std::size_t at = text.find(what);
  if (at == std::string::npos) return "not found";
  text.replace(at, what.size(), by);
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.json", text);
  return refusal([&] { WordTokenizer::load(folder / "tokenizer.json"); });
}

}  // namespace

TEST(WordTokenizer, orders_words_by_frequency_then_by_their_bytes) {
  const WordTokenizer words = small_words();
  const Texts expected = {"[UNK]", "[PAD]", "[SOS]", "[EOS]", "the", "a", "cat", "dog"};
  ASSERT_EQ(words.size(), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(words.token_of(static_cast<std::int32_t>(i)), expected[i]);
    EXPECT_EQ(words.id_of(expected[i]), static_cast<std::int32_t>(i));
  }
  EXPECT_EQ(words.id_of("zebra"), std::nullopt);
  EXPECT_EQ(words.token_of(8), "");
}

TEST(WordTokenizer, frequency_and_size_limit_the_vocabulary) {
  EXPECT_EQ(WordTokenizer::train(kTexts, {.min_frequency = 1}).size(), 12);
  EXPECT_EQ(WordTokenizer::train(kTexts, {.min_frequency = 1, .vocab_size = 6}).size(), 6);
  EXPECT_EQ(WordTokenizer::train({}).size(), 4);
}

TEST(WordTokenizer, cuts_words_from_punctuation_and_leaves_space_out) {
  const WordTokenizer words =
      WordTokenizer::train(Texts{"a_1 \u00e9t\u00e9 n\u0303 ?!"}, {.min_frequency = 1});
  EXPECT_EQ(words.encode("\ta_1?!\u3000\u00e9t\u00e9\u2003n\u0303"),
            (WordIds{*words.id_of("a_1"), *words.id_of("?!"), *words.id_of("\u00e9t\u00e9"),
                     *words.id_of("n\u0303")}));
  EXPECT_EQ(words.encode("?! ?"), (WordIds{*words.id_of("?!"), 0}));
  EXPECT_TRUE(words.encode(" \n").empty());
}

TEST(WordTokenizer, special_tokens_in_a_text_are_one_token) {
  const WordTokenizer words = small_words();
  EXPECT_EQ(words.encode("[SOS]the dog[EOS]"), (WordIds{2, 4, 7, 3}));
  EXPECT_EQ(words.encode("[SOS]", {.split_special_tokens = true}), (WordIds{0, 0, 0}));
}

TEST(WordTokenizer, decodes_with_spaces_and_without_special_tokens) {
  const WordTokenizer words = small_words();
  EXPECT_EQ(words.decode(WordIds{2, 4, 0, 7, 3, 1}), "the dog");
  EXPECT_EQ(words.decode(WordIds{2, 4, 0}, {.skip_special_tokens = false}), "[SOS] the [UNK]");
  EXPECT_TRUE(has(refusal([&] { words.decode(WordIds{8}); }), "no token has the id 8"));
  EXPECT_TRUE(has(refusal([&] { words.decode(WordIds{-1}); }), "no token has the id -1"));
}

TEST(WordTokenizer, a_saved_one_is_loaded_as_an_equal_one) {
  const TemporaryFolder folder;
  const WordTokenizer words = small_words();
  words.save(folder / "tokenizer.json");
  for (const std::string& path : {folder / "tokenizer.json", folder / "."}) {
    const WordTokenizer loaded = WordTokenizer::load(path);
    EXPECT_EQ(loaded.size(), words.size());
    const std::string text = "[SOS] the zebra, a cat";
    EXPECT_EQ(loaded.encode(text), words.encode(text));
  }
  EXPECT_THROW(WordTokenizer::load(folder / "none.json"), SystemError);
}

TEST(WordTokenizer, bytes_that_are_not_utf8_are_unknown) {
  const WordTokenizer words = WordTokenizer::train(Texts{"a\xff", "a\xff"});
  EXPECT_EQ(words.size(), 5);
  EXPECT_EQ(words.encode("a\xff"), (WordIds{4, 0}));
}

TEST(WordTokenizer, files_of_another_kind_are_refused) {
  EXPECT_EQ(refusal_of_file("WordLevel", "WordLevel"), "accepted");
  EXPECT_TRUE(has(refusal_of_file("WordLevel", "BPE"), "model is of type 'BPE'"));
  EXPECT_TRUE(has(refusal_of_file("Whitespace", "ByteLevel"), "has the pre_tokenizer 'ByteLevel'"));
  EXPECT_TRUE(
      has(refusal_of_file(R"("normalizer": null)", R"("normalizer": {"type": "Lowercase"})"),
          R"(has a normalizer ({"type":"Lowercase"}))"));
  EXPECT_TRUE(has(refusal_of_file(R"("unk_token": "[UNK]")", R"("unk_token": "<unk>")"),
                  "has the unk_token '<unk>', which its vocab lacks"));
  EXPECT_TRUE(has(refusal_of_file(R"("dog": 2)", R"("dog": 1)"), "gives the id 1 to"));
  EXPECT_TRUE(has(refusal_of_file(R"("dog": 2)", R"("dog": 9999999)"), "the file is damaged"));
  EXPECT_TRUE(has(refusal_of_file(R"("dog": 2)", R"("dog": -2)"), "'dog' the id -2"));
  EXPECT_TRUE(has(refusal_of_file(R"("id": 0)", R"("id": 2)"), "does not fit the vocabulary"));
  EXPECT_TRUE(has(refusal_of_file("\"version\"", "version"), "is not JSON"));
}

TEST(WordTokenizer, options_that_cannot_work_are_refused) {
  const auto refused = [](const WordTokenizerTraining& options) {
    return refusal([&] { WordTokenizer::train(kTexts, options); });
  };
  EXPECT_TRUE(has(refused({.vocab_size = 3}), "vocab_size is 3; the special tokens alone are 4"));
  EXPECT_TRUE(has(refused({.min_frequency = -1}), "min_frequency is -1"));
  EXPECT_TRUE(has(refused({.special_tokens = {}}), "special_tokens is empty"));
  EXPECT_TRUE(has(refused({.special_tokens = {"[UNK]", "[UNK]"}}), "given twice"));
}

TEST(Tokenizer, can_have_the_special_tokens_of_a_translator) {
  const std::vector<std::string_view> texts = {"the dog, the cat", "the cat: a dog?"};
  const Tokenizer pieces = train_tokenizer(
      texts, {.vocab_size = 270, .special_tokens = {"[UNK]", "[PAD]", "[SOS]", "[EOS]"}});
  EXPECT_EQ(pieces.size(), 270);
  EXPECT_EQ(pieces.id_of("[UNK]"), 0);
  EXPECT_EQ(pieces.id_of("[EOS]"), 3);
  const TemporaryFolder folder;
  pieces.save(folder / "pieces");
  for (const Tokenizer& one : {pieces, Tokenizer::load(folder / "pieces")}) {
    WordIds ids = one.encode("[SOS]the new cat[EOS]");
    EXPECT_EQ(ids.front(), 2);
    EXPECT_EQ(ids.back(), 3);
    EXPECT_EQ(one.decode(ids, {.skip_special_tokens = true}), "the new cat");
  }
}
