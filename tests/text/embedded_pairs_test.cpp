#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "core/checksum.h"
#include "lockstep/sentence_pairs.h"

using namespace lockstep;

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

TEST(EmbeddedPairs, are_the_same_on_every_machine) {
  std::string all;
  for (const SentencePair& pair : embedded_sentence_pairs(1000, 7)) {
    all += pair.source + "\t" + pair.target + "\n";
  }
  EXPECT_EQ(checksum_of(all), 4796808870127095642u) << all.substr(0, 1000);
}

TEST(EmbeddedPairs, a_longer_list_begins_with_a_shorter_one) {
  const auto few = embedded_sentence_pairs(100, 3);
  const auto many = embedded_sentence_pairs(1000, 3);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(embedded_sentence_pairs(100, 4), few);
  EXPECT_TRUE(embedded_sentence_pairs(0).empty());
}

TEST(EmbeddedPairs, no_sentence_of_one_part_is_in_another) {
  std::set<std::string> sources;
  const auto pairs = embedded_sentence_pairs(30000, 1);
  for (const SentencePair& pair : pairs) sources.insert(pair.source);
  EXPECT_EQ(sources.size(), pairs.size());
}

TEST(EmbeddedPairs, have_a_small_vocabulary_and_short_sentences) {
  std::map<std::string, int> source_words, target_words;
  for (const SentencePair& pair : embedded_sentence_pairs(20000)) {
    for (const auto& [text, counts] :
         {std::pair(&pair.source, &source_words), std::pair(&pair.target, &target_words)}) {
      const auto words = words_of(*text);
      EXPECT_GE(words.size(), 3u) << *text;
      EXPECT_LE(words.size(), 15u) << *text;
      for (const std::string& word : words) ++(*counts)[word];
    }
  }
  for (const auto* counts : {&source_words, &target_words}) {
    EXPECT_GE(counts->size(), 150u);
    EXPECT_LE(counts->size(), 300u);
    for (const auto& [word, count] : *counts) EXPECT_GE(count, 20) << word;  // can be learnt
  }
}

TEST(EmbeddedPairs, follow_the_rules_of_the_language) {
  const auto pairs = embedded_sentence_pairs(25);
  const auto has = [&pairs](const std::string& source, const std::string& target) {
    return std::find(pairs.begin(), pairs.end(), SentencePair{source, target}) != pairs.end();
  };
  // Verbs go to the end, times to just before them.
  EXPECT_TRUE(has("yesterday my strange teacher painted my big ring .",
                  "doceno fremdo mia anela grana mia na jer pintis ."));
  EXPECT_TRUE(has("on sunday my small friend does not sell a ring .",
                  "amiko mino mia anela na soldi sur ne ventas ."));
  // 349 is 9 and 2 twenties and 3 hundreds; adjectives have the endings of their nouns.
  EXPECT_TRUE(has("the old bottles cost three hundred forty nine coins .",
                  "flaskai senai la nau e du vig e tri sent monai kustas ."));
  EXPECT_TRUE(has("today is saturday the thirteenth of august nineteen eighty nine .",
                  "hodi nau e kvar vig jar disnau grenal trez sabadi estas ."));
}
