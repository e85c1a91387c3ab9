#include "lockstep/sentence_pairs.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using Pairs = std::vector<SentencePair>;

const Pairs kTwo = {{"Good morning.", "Buon giorno."}, {"Thank you.", "Grazie."}};

SentencePairOptions languages(const std::string& path) {
  return {.path = path, .source_language = "en", .target_language = "it"};
}

std::string refusal_of(const SentencePairOptions& options) {
  return refusal([&] { read_sentence_pairs(options); });
}

}  // namespace

TEST(SentencePairs, a_table_without_a_header_has_source_and_target_in_its_first_columns) {
  const TemporaryFolder folder;
  for (const std::string name : {"a.tsv", "a.txt"}) {
    write_text(folder / name,
               "\xef\xbb\xbfGood morning.\tBuon giorno.\tCC-BY\r\n \t \n\n Thank you. \tGrazie.");
    EXPECT_EQ(read_sentence_pairs({.path = folder / name}), kTwo) << name;
    EXPECT_EQ(read_sentence_pairs(languages(folder / name)), kTwo) << name;
  }
}

TEST(SentencePairs, a_header_with_both_languages_says_which_columns_they_are) {
  const TemporaryFolder folder;
  write_text(folder / "a.tsv",
             "id\tit\ten\n1\tBuon giorno.\tGood morning.\n2\tGrazie.\tThank you.\n");
  EXPECT_EQ(read_sentence_pairs(languages(folder / "a.tsv")), kTwo);
  write_text(folder / "b.tsv",
             "source\ttarget\nGood morning.\tBuon giorno.\nThank you.\tGrazie.\n");
  EXPECT_EQ(read_sentence_pairs({.path = folder / "b.tsv"}), kTwo);
}

TEST(SentencePairs, json_has_the_languages_as_fields_or_under_translation) {
  const TemporaryFolder folder;
  write_text(folder / "flat.jsonl", R"({"en": "Good morning.", "it": "Buon giorno.", "n": 1}
{"it": "Grazie.", "en": "Thank you."})");
  EXPECT_EQ(read_sentence_pairs(languages(folder / "flat.jsonl")), kTwo);
  write_text(folder / "opus.jsonl",
             R"({"id": "0", "translation": {"en": "Good morning.", "it": "Buon giorno."}}
{"id": "1", "translation": {"en": "Thank you.", "it": "Grazie."}})");
  EXPECT_EQ(read_sentence_pairs(languages(folder / "opus.jsonl")), kTwo);
  write_text(folder / "list.json",
             R"([{"translation": {"en": "Good morning.", "it": "Buon giorno."}},
{"translation": {"en": "Thank you.", "it": "Grazie."}}, {"translation": {"en": "", "it": " "}}])");
  EXPECT_EQ(read_sentence_pairs(languages(folder / "list.json")), kTwo);
}

TEST(SentencePairs, a_folder_is_read_by_its_split) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "books");
  write_text(folder / "books/train-0.tsv", "Good morning.\tBuon giorno.\n");
  write_text(folder / "books/train-1.tsv", "Thank you.\tGrazie.\n");
  write_text(folder / "books/validation.tsv", "No.\tNo.\n");
  EXPECT_EQ(read_sentence_pairs({.path = folder / "books"}), kTwo);
  EXPECT_EQ(read_sentence_pairs({.path = folder / "books", .split = "validation"}),
            (Pairs{{"No.", "No."}}));
}

TEST(SentencePairs, parallel_files_belong_together_line_by_line) {
  const TemporaryFolder folder;
  write_text(folder / "a.en", "Good morning.\n\nThank you.\nOnly here\n");
  write_text(folder / "a.it", "Buon giorno.\r\n\r\nGrazie.\r\n\r\n");
  Pairs expected = kTwo;
  expected.push_back({"Only here", ""});
  EXPECT_EQ(read_sentence_pairs({.path = folder / "a.en", .target_path = folder / "a.it"}),
            expected);
}

TEST(SentencePairs, parallel_files_of_different_lengths_are_refused_with_both_counts) {
  const TemporaryFolder folder;
  write_text(folder / "a.en", "one\ntwo\nthree");
  write_text(folder / "a.it", "uno\ndue\n");
  EXPECT_EQ(refusal_of({.path = folder / "a.en", .target_path = folder / "a.it"}),
            concat("'", folder / "a.en", "' has 3 lines and '", folder / "a.it",
                   "' 2; the lines of parallel files belong together one by one"));
}

TEST(SentencePairs, a_line_without_a_tab_is_refused_with_its_number) {
  const TemporaryFolder folder;
  write_text(folder / "a.tsv", "one\tuno\n\ntwo due\n");
  EXPECT_EQ(refusal_of({.path = folder / "a.tsv"}),
            concat("'", folder / "a.tsv",
                   "': line 3 has no tab: 'two due'; a pair is a source, a tab and a target"));
  write_text(folder / "b.tsv", "id\ten\tit\n1\tone\n");
  EXPECT_TRUE(has(refusal_of(languages(folder / "b.tsv")),
                  "line 2 has too few columns: '1\tone'; the header asks for 3 columns"));
}

TEST(SentencePairs, a_missing_language_is_refused_with_those_there_are) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", R"({"id": 1, "translation": {"en": "one", "fr": "un"}})");
  EXPECT_EQ(refusal_of(languages(folder / "a.jsonl")),
            concat("'", folder / "a.jsonl",
                   "': record 1 has no field 'translation.it' (it has: id, translation.en, "
                   "translation.fr)"));
  write_text(folder / "b.jsonl", R"({"en": "one", "it": "uno"}
{"en": "two"})");
  EXPECT_EQ(refusal_of(languages(folder / "b.jsonl")),
            concat("'", folder / "b.jsonl", "': record 2 has no field 'it' (it has: en)"));
  EXPECT_TRUE(has(refusal_of({.path = folder / "b.jsonl"}),
                  "record 1 has no field 'source' (it has: en, it)"));
  write_text(folder / "c.jsonl", R"({"translation": {"en": "one", "it": ["uno"]}})");
  EXPECT_TRUE(has(refusal_of(languages(folder / "c.jsonl")),
                  "has a field 'translation.it' of type array; it must be a text"));
}

TEST(SentencePairs, what_is_not_utf8_is_refused_with_its_place) {
  const TemporaryFolder folder;
  write_text(folder / "a.tsv", "one\tuno\ncaf\xe9\tcaff\xe8\n");
  EXPECT_TRUE(has(refusal_of({.path = folder / "a.tsv"}), "line 2 is not UTF-8: wrong at byte 4"));
  write_text(folder / "a.en", "one\n");
  write_text(folder / "a.it", "un\xff\n");
  EXPECT_TRUE(has(refusal_of({.path = folder / "a.en", .target_path = folder / "a.it"}),
                  "a.it': line 1 is not UTF-8: wrong at byte 3 of 3"));
  write_text(folder / "a.jsonl", "{\"en\": \"a\xff\", \"it\": \"b\"}");
  EXPECT_TRUE(has(refusal_of(languages(folder / "a.jsonl")), "record 1 (line 1) is not JSON"));
}

TEST(SentencePairs, options_that_cannot_work_are_refused) {
  const TemporaryFolder folder;
  write_text(folder / "empty.tsv", "\n\n");
  EXPECT_TRUE(has(refusal_of({.path = folder / "empty.tsv"}), "has no pair of sentences"));
  EXPECT_TRUE(has(refusal_of({.path = folder / "none.tsv"}), "does not exist"));
  EXPECT_TRUE(
      has(refusal_of({.path = folder / "x", .source_language = "en", .target_language = "en"}),
          "are both 'en'"));
  EXPECT_THROW(read_sentence_pairs({.path = folder / "a.en", .target_path = folder / "a.it"}),
               SystemError);
}
