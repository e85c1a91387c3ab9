#include "lockstep/tokenizer.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/text/support.h"
#include "text/bpe.h"
#include "text/gpt2_scanner.h"
#include "text/regex.h"
#include "text/utf8.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using Ids = std::vector<std::int32_t>;
using Pieces = std::vector<std::string>;

Pieces pieces_of(std::string_view text) {
  Pieces pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_gpt2_piece(text, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

// Characters that the pattern treats in different ways, in any order.
std::string random_text(std::mt19937& random, int characters) {
  static const std::vector<std::string> kChoices = {
      "a",      "Z",      "e",      "0",      "9",      "'",          "'s",     "'ll",    "l",
      " ",      " ",      "\n",     "\t",     "\r",     "!",          "<|",     "_",      "\u00e9",
      "\u0300", "\u00a0", "\u3000", "\u4e2d", "\u0663", "\U0001f600", "\u200d", "\u2028", "\ufffd"};
  std::string text;
  for (int i = 0; i < characters; ++i) text += kChoices[random() % kChoices.size()];
  return text;
}

// The rule itself, as slow as it is plain.
Ids merge_plainly(Ids ids, const std::vector<Bpe::Merge>& merges) {
  while (true) {
    std::size_t best_rank = merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

TEST(Gpt2Scanner, takes_words_with_the_space_before_them) {
  EXPECT_EQ(pieces_of("Hello world, it's 2024!"),
            (Pieces{"Hello", " world", ",", " it", "'s", " 2024", "!"}));
}

TEST(Gpt2Scanner, leaves_the_last_space_to_the_next_word_but_not_at_the_end) {
  EXPECT_EQ(pieces_of("a   b \n\n"), (Pieces{"a", "  ", " b", " \n\n"}));
  EXPECT_EQ(pieces_of("\n\nx"), (Pieces{"\n", "\n", "x"}));
}

TEST(Gpt2Scanner, takes_bytes_that_are_not_utf8_for_symbols) {
  EXPECT_EQ(pieces_of("ab\xff\xfe"
                      "cd \x80!\xe4\xb8"),
            (Pieces{"ab", "\xff\xfe", "cd", " \x80!\xe4\xb8"}));
}

TEST(Gpt2Scanner, agrees_with_the_regular_expression) {
  const Regex regex{std::string(kGpt2Pattern)};
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    const std::string text = random_text(random, 60);
    Pieces matches;
    regex.for_each_match(text, [&](std::string_view match) { matches.emplace_back(match); });
    ASSERT_EQ(pieces_of(text), matches) << text;
  }
}

TEST(Bpe, merges_as_the_plain_rule_does_for_short_and_long_pieces) {
  std::array<std::int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) byte_ids[static_cast<std::size_t>(byte)] = byte;
  std::mt19937 random(3);
  std::vector<Bpe::Merge> merges;
  std::vector<std::int32_t> known = {'a', 'b', 'c'};
  for (std::int32_t id = 256; id < 296; ++id) {
    merges.push_back({known[random() % known.size()], known[random() % known.size()], id});
    known.push_back(id);
  }
  const Bpe bpe(byte_ids, merges);
  // Of a pair that is listed twice the later place counts; the plain rule takes the first it finds.
  std::vector<Bpe::Merge> unique;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const bool again =
        std::any_of(merges.begin() + static_cast<std::ptrdiff_t>(i) + 1, merges.end(),
                    [&](const Bpe::Merge& later) {
                      return later.left == merges[i].left && later.right == merges[i].right;
                    });
    if (!again) unique.push_back(merges[i]);
  }
  Bpe::Scratch scratch;
  for (const std::size_t length : {1, 2, 3, 10, 40, 95, 96, 97, 98, 150, 400}) {
    for (int round = 0; round < 20; ++round) {
      std::string piece;
      for (std::size_t i = 0; i < length; ++i) piece.push_back("abc"[random() % 3]);
      Ids found;
      bpe.encode(piece, found, scratch);
      ASSERT_EQ(found, merge_plainly(Ids(piece.begin(), piece.end()), unique)) << piece;
    }
  }
}

TEST(Tokenizer, any_bytes_come_back) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string text = random_text(random, 30);
    for (int i = 0; i < 8; ++i) text[random() % text.size()] = static_cast<char>(random());
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, a_megabyte_without_a_space_takes_moments) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = std::string(1 << 20, 'a') + std::string(1 << 20, ' ');
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  // Quadratic time would be hours; the limit leaves room for a busy machine and for sanitizers.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST(Tokenizer, what_was_encoded_before_does_not_matter) {
  const Tokenizer used = small_tokenizer();
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string word;
    for (std::size_t i = 0; i <= random() % 34; ++i) word.push_back("thend and"[random() % 9]);
    const Tokenizer fresh = round % 100 == 0 ? small_tokenizer() : used;
    ASSERT_EQ(used.encode(word), fresh.encode(word)) << word;
  }
}

TEST(Tokenizer, special_tokens_are_one_token_unless_they_are_to_be_text) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::int32_t end = tokenizer.end_of_text().value();
  EXPECT_EQ(tokenizer.id_of("<|endoftext|>"), end);
  const Ids ids = tokenizer.encode("a<|endoftext|><|endoftext|>b");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 2);
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), "ab");
  const Ids text = tokenizer.encode("<|endoftext|>", {.split_special_tokens = true});
  EXPECT_EQ(std::count(text.begin(), text.end(), end), 0);
  EXPECT_EQ(tokenizer.decode(text), "<|endoftext|>");
}

TEST(Tokenizer, threads_give_the_same_ids_in_the_same_order) {
  const Tokenizer tokenizer = small_tokenizer();
  std::mt19937 random(9);
  std::vector<std::string> texts;
  for (int i = 0; i < 333; ++i) texts.push_back(random_text(random, i % 50));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto one = tokenizer.encode_batch(views, {.threads = 1});
  EXPECT_EQ(one, tokenizer.encode_batch(views, {.threads = 4}));
  for (std::size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(one[i], tokenizer.encode(texts[i]));
  EXPECT_TRUE(
      has(refusal([&] { tokenizer.encode_batch(views, {.threads = -1}); }), "threads is -1"));
}

TEST(Tokenizer, copies_can_be_used_by_several_threads) {
  const Tokenizer tokenizer = small_tokenizer();
  const Ids expected = tokenizer.encode("then the other cat sat");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([copy = tokenizer, &expected] {
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(copy.encode("then the other cat sat"), expected);
      }
    });
  }
}

TEST(Tokenizer, decoding_an_id_that_no_token_has_is_refused) {
  const Tokenizer tokenizer = small_tokenizer();
  const Ids ids = {0, static_cast<std::int32_t>(tokenizer.size())};
  EXPECT_EQ(refusal([&] { tokenizer.decode(ids); }),
            "decode: no token of the tokenizer has the id 290; its size is 290");
}

TEST(TokenizerTraining, learns_the_most_frequent_pair_first) {
  const std::string_view texts[] = {"ab ab ab", "ab abc abc"};
  const Tokenizer tokenizer = train_tokenizer(texts, {.vocab_size = 259, .special_tokens = {}});
  EXPECT_EQ(tokenizer.size(), 259);
  EXPECT_EQ(tokenizer.token_of(256), "ab");
  EXPECT_EQ(tokenizer.token_of(257), "\u0120ab");
  EXPECT_EQ(tokenizer.encode(" abc").size(), 1U);
}

TEST(TokenizerTraining, without_room_for_merges_it_is_a_tokenizer_of_bytes) {
  const Tokenizer tokenizer = small_tokenizer(257);
  EXPECT_EQ(tokenizer.encode("the").size(), 3U);
  EXPECT_EQ(tokenizer.size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
}

TEST(TokenizerTraining, stops_where_nothing_is_frequent_enough) {
  const std::string_view texts[] = {"xy xy zw"};
  const Tokenizer tokenizer =
      train_tokenizer(texts, {.vocab_size = 1000, .min_frequency = 2, .special_tokens = {}});
  EXPECT_EQ(tokenizer.size(), 257);
}

TEST(TokenizerTraining, refuses_options_that_cannot_work) {
  EXPECT_TRUE(has(refusal([] { small_tokenizer(256); }), "vocab_size is 256"));
  const std::string_view texts[] = {"a"};
  EXPECT_TRUE(has(refusal([&] {
                    train_tokenizer(texts, {.vocab_size = 300, .special_tokens = {"<x>", "<x>"}});
                  }),
                  "'<x>'"));
}
