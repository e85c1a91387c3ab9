#include "lockstep/embedded_instructions.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// The answer worked out in another way than the generators do.
std::string answer_to(const TextRecord& record) {
  std::string word = record.input;
  if (record.instruction == "copy") return word;
  if (record.instruction == "reverse") {
    std::reverse(word.begin(), word.end());
    return word;
  }
  if (record.instruction == "sort") {
    const std::multiset<char> letters(word.begin(), word.end());
    return {letters.begin(), letters.end()};
  }
  std::istringstream numbers(record.input);
  int first = 0, second = 0, third = 0;
  numbers >> first >> second;
  if (record.instruction == "add") return std::to_string(first + second);
  if (record.instruction == "next") {
    numbers >> third;
    return std::to_string(2 * third - second);
  }
  return {};
}

}  // namespace

TEST(EmbeddedInstructions, answers_are_right) {
  const EmbeddedInstructions data = embedded_instructions({.train_records = 3000});
  std::map<std::string, std::string> plurals;
  for (const TextRecord& record : data.train) {
    if (record.instruction == "plural") {
      plurals[record.input] = record.output;
    } else {
      ASSERT_EQ(record.output, answer_to(record)) << record.instruction << " " << record.input;
    }
  }
  EXPECT_GT(plurals.size(), 100U);
  for (const auto& [noun, plural] : std::map<std::string, std::string>{{"box", "boxes"},
                                                                       {"city", "cities"},
                                                                       {"toy", "toys"},
                                                                       {"cat", "cats"},
                                                                       {"bench", "benches"}}) {
    if (plurals.contains(noun)) {
      EXPECT_EQ(plurals[noun], plural);
    }
  }
}

TEST(EmbeddedInstructions, what_is_held_out_is_not_in_training) {
  const EmbeddedInstructions data =
      embedded_instructions({.train_records = 20000, .held_out_records = 600});
  EXPECT_EQ(data.train.size(), 20000U);
  EXPECT_EQ(data.held_out.size(), 600U);
  std::set<std::string> questions;
  for (const TextRecord& record : data.train) questions.insert(record.instruction + record.input);
  std::map<std::string, int> tasks;
  for (const TextRecord& record : data.held_out) {
    EXPECT_FALSE(questions.contains(record.instruction + record.input));
    ++tasks[record.instruction];
  }
  EXPECT_EQ(tasks.size(), 6U);
  for (const auto& [name, count] : tasks) EXPECT_EQ(count, 100) << name;
}

TEST(EmbeddedInstructions, the_seed_and_the_options_decide) {
  EXPECT_EQ(embedded_instructions({.train_records = 99}).train,
            embedded_instructions({.train_records = 99}).train);
  EXPECT_NE(embedded_instructions({.train_records = 99}).train,
            embedded_instructions({.train_records = 99, .seed = 1}).train);
  const auto words = embedded_instructions({.tasks = {"copy"},
                                            .train_records = 500,
                                            .letters = 3,
                                            .shortest_word = 4,
                                            .longest_word = 6});
  for (const TextRecord& record : words.train) {
    EXPECT_EQ(record.instruction, "copy");
    EXPECT_TRUE(record.input.size() >= 4 && record.input.size() <= 6);
    EXPECT_EQ(record.input.find_first_not_of("abc"), std::string::npos);
  }
  // A value that never changes: runs on the data are compared across machines and versions.
  EXPECT_EQ(TextSource(embedded_instructions({.train_records = 1000}).train).fingerprint(),
            3198846634944421340U);
}

TEST(EmbeddedInstructions, options_that_leave_nothing_to_ask_are_refused) {
  EXPECT_TRUE(has(refusal([] { embedded_instructions({.tasks = {"sing"}}); }), "no task 'sing'"));
  EXPECT_TRUE(has(refusal([] { embedded_instructions({.letters = 1}); }), "letters is 1"));
  EXPECT_TRUE(has(refusal([] { embedded_instructions({.shortest_word = 4, .longest_word = 3}); }),
                  "longest_word is 3"));
}
