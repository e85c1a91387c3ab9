#include "lockstep/translation_metrics.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using Texts = std::vector<std::string>;

struct Scored {
  const char* name;
  Texts hypotheses, references;
  double bleu, chrf;                                        // as sacrebleu 2.6.0 gives them
  double character_errors, characters, word_errors, words;  // as torchmetrics 1.9.0 counts them
};

const std::vector<Scored>& scored() {
  static const std::vector<Scored> cases = {
      {"mixed",
       {"The cat sat on the mat.", "There is a dog, isn't there?",
        "It costs 1,000.50 dollars - or 3-4 of them."},
       {"The cat is on the mat.", "There's a dog here, isn't there?",
        "It costs 1,000.5 dollars, or 3-4 of those."},
       42.03039467692456,
       65.87247635914171,
       16,
       96,
       9,
       20},
      {"same", {"one two three four five"}, {"one two three four five"}, 100, 100, 0, 23, 0, 5},
      {"shorter than four", {"a b c"}, {"a b c"}, 0, 100, 0, 5, 0, 3},
      {"nothing shared", {"x y z v w"}, {"a b c d e"}, 0, 0, 5, 9, 5, 5},
      {"smoothed",
       {"the black dog ran far away"},
       {"the black cat walked far away today"},
       19.43309443637608,
       41.23106215752197,
       14,
       35,
       3,
       7},
      {"brief",
       {"the black cat walked"},
       {"the black cat walked far away today"},
       47.23665527410149,
       59.982660650282426,
       15,
       35,
       3,
       7},
      {"an empty hypothesis",
       {"", "the cat sat on the mat"},
       {"the dog sat", "the cat sat on a mat"},
       32.58798048281462,
       51.4212544066322,
       14,
       31,
       4,
       9},
      {"entities and stops",
       {"&quot;Hi&quot; &amp;lt; &lt;b&gt; he said , no . a.b,c 5. 5.a .5 --"},
       {"\"Hi\" &lt; <b> he said, no. a.b,c 5. 5.a .5 --"},
       100,
       64.92888866215519,
       26,
       45,
       7,
       11},
      {"unicode",
       {"caf\u00e9\u3000\u00fcber\u2003stra\u00dfe \U0001f600 na\u00efve"},
       {"cafe \u00fcber die stra\u00dfe \U0001f600 na\u00efve"},
       34.98330125272253,
       59.762999030518785,
       7,
       28,
       2,
       6}};
  return cases;
}

}  // namespace

TEST(TranslationMetrics, equal_those_of_sacrebleu_and_torchmetrics) {
  for (const Scored& one : scored()) {
    EXPECT_NEAR(bleu(one.hypotheses, one.references), one.bleu, 1e-9) << one.name;
    EXPECT_NEAR(chrf(one.hypotheses, one.references), one.chrf, 1e-9) << one.name;
    EXPECT_DOUBLE_EQ(character_error_rate(one.hypotheses, one.references),
                     one.character_errors / one.characters)
        << one.name;
    EXPECT_DOUBLE_EQ(word_error_rate(one.hypotheses, one.references), one.word_errors / one.words)
        << one.name;
  }
}

TEST(TranslationMetrics, counts_of_parts_add_up_to_those_of_the_whole) {
  TranslationCounts parts[2];
  Texts hypotheses, references;
  for (const Scored& one : scored()) {
    for (std::size_t i = 0; i < one.hypotheses.size(); ++i) {
      parts[hypotheses.size() % 2].add(one.hypotheses[i], one.references[i]);
      hypotheses.push_back(one.hypotheses[i]);
      references.push_back(one.references[i]);
    }
  }
  parts[0].add(parts[1]);
  EXPECT_EQ(parts[0].bleu(), bleu(hypotheses, references));
  EXPECT_EQ(parts[0].chrf(), chrf(hypotheses, references));
  EXPECT_EQ(parts[0].character_error_rate(), character_error_rate(hypotheses, references));
  EXPECT_EQ(parts[0].word_error_rate(), word_error_rate(hypotheses, references));
}

TEST(TranslationMetrics, empty_texts_have_scores_too) {
  const Texts empty = {""}, word = {"word"};
  EXPECT_EQ(bleu(empty, empty), 0);
  EXPECT_EQ(chrf(empty, word), 0);
  EXPECT_EQ(character_error_rate(empty, empty), 0);
  EXPECT_EQ(character_error_rate(empty, word), 1);
  EXPECT_TRUE(std::isinf(word_error_rate(word, empty)));
}

TEST(TranslationMetrics, a_byte_that_is_not_utf8_is_a_character) {
  EXPECT_EQ(character_error_rate(Texts{"a\xff\xfe"}, Texts{"a\xff"}), 0.5);
  EXPECT_EQ(character_error_rate(Texts{"caf\xc3"}, Texts{"caf\xc3\xa9"}), 0.25);
}

TEST(TranslationMetrics, lists_that_do_not_fit_are_refused) {
  EXPECT_EQ(refusal([] {
              bleu(Texts{"a", "b"}, Texts{"a"});
            }),
            "bleu: there are 2 hypotheses and 1 references; each needs its own");
  EXPECT_EQ(refusal([] { word_error_rate(Texts{}, Texts{}); }),
            "word_error_rate: there are no sentences to compare");
}
