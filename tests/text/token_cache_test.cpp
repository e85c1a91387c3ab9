#include "lockstep/token_cache.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using CachedIds = std::vector<std::int64_t>;
constexpr std::int64_t kNone = TokenBlocks::kNoLoss;

struct Block {
  CachedIds input;
  CachedIds labels;
};

Block block_of(const TokenBlocks& blocks, std::int64_t index) {
  const auto length = static_cast<std::size_t>(blocks.seq_length());
  Block block{CachedIds(length), CachedIds(length)};
  blocks.copy(index, block.input, block.labels);
  return block;
}

// A token is a byte here: ids are those of letters, 0 ends a document.
class TokenCacheTest : public ::testing::Test {
 protected:
  TokenCacheTest() { options_.directory = folder_ / "caches"; }

  CachedIds ids(const std::string& text) const {
    CachedIds found;
    for (const char letter : text) {
      found.push_back(letter == '.'   ? 0
                      : letter == '_' ? kNone
                                      : tokenizer_.encode(std::string(1, letter)).front());
    }
    return found;
  }

  TokenCache make(const std::vector<TextRecord>& records) const {
    return TokenCache::open_or_make(tokenizer_, TextSource(records), options_);
  }

  void expect_block(const TokenBlocks& blocks, std::int64_t index, const std::string& input,
                    const std::string& labels) const {
    const Block block = block_of(blocks, index);
    EXPECT_EQ(block.input, ids(input)) << "block " << index;
    EXPECT_EQ(block.labels, ids(labels)) << "block " << index;
  }

  TemporaryFolder folder_;
  Tokenizer tokenizer_ = small_tokenizer(257);
  TokenCacheOptions options_{.seq_length = 4, .prompt = PromptTemplate::brief()};
};

std::vector<TextRecord> numbered(int count) {
  std::vector<TextRecord> records;
  for (int i = 0; i < count; ++i) records.push_back({.text = concat("text ", i)});
  return records;
}

}  // namespace

TEST_F(TokenCacheTest, documents_follow_each_other_through_the_blocks) {
  const TokenCache cache = make({{.text = "abc"}, {.text = "de"}, {.text = "f"}});
  const TokenBlocks& blocks = cache.train();
  ASSERT_EQ(blocks.size(), 2);  // abc.de.f. is nine tokens: eight labels
  expect_block(blocks, 0, "abc.", "bc.d");
  expect_block(blocks, 1, "de.f", "e.f.");
  EXPECT_EQ(blocks.documents(), 3);
  EXPECT_EQ(blocks.tokens(), 9);
  EXPECT_EQ(blocks.loss_tokens(), 8);
  EXPECT_EQ(cache.validation().size(), 0);
  EXPECT_EQ(cache.largest_id(), ids("f").front());
}

TEST_F(TokenCacheTest, the_last_block_is_filled_up_without_loss) {
  const TokenBlocks blocks = make({{.text = "abcde"}}).train();
  ASSERT_EQ(blocks.size(), 2);
  expect_block(blocks, 1, "e...", ".___");
  EXPECT_EQ(blocks.loss_tokens(), 5);
}

TEST_F(TokenCacheTest, whole_documents_are_not_cut_unless_they_are_too_long) {
  options_.whole_documents = true;
  const TokenBlocks blocks =
      make({{.text = "ab"}, {.text = "cd"}, {.text = "e"}, {.text = "fghijk"}}).train();
  ASSERT_EQ(blocks.size(), 4);
  expect_block(blocks, 0, "ab..", "b.__");
  expect_block(blocks, 1, "cd.e", "d.e.");
  expect_block(blocks, 2, "fghi", "ghij");
  expect_block(blocks, 3, "jk..", "k.__");  // j is seen again, and no label twice
  EXPECT_EQ(blocks.loss_tokens(), 2 + 4 + 4 + 2);
}

TEST_F(TokenCacheTest, one_document_a_block_begins_at_its_first_place) {
  options_.one_per_block = true;
  const TokenBlocks blocks = make({{.text = "a"}, {.text = "b"}, {.text = "cdef"}}).train();
  ASSERT_EQ(blocks.size(), 3);
  expect_block(blocks, 0, "a...", ".___");
  expect_block(blocks, 1, "b...", ".___");
  expect_block(blocks, 2, "cdef", "def.");
}

TEST_F(TokenCacheTest, loss_is_taken_on_answers_only_where_asked) {
  options_.answers_only = true;
  options_.one_per_block = true;
  options_.seq_length = 8;
  const TokenBlocks blocks = make({{.instruction = "ab", .input = "c", .output = "de"}}).train();
  ASSERT_EQ(blocks.size(), 1);
  expect_block(blocks, 0, "ab c\nde.", "____de._");
  EXPECT_EQ(blocks.loss_tokens(), 3);
}

TEST_F(TokenCacheTest, the_second_time_it_is_found) {
  const TokenCache first = make(numbered(20));
  EXPECT_TRUE(first.made());
  const TokenCache second = make(numbered(20));
  EXPECT_FALSE(second.made());
  EXPECT_EQ(first.folder(), second.folder());
  EXPECT_NE(make(numbered(21)).folder(), first.folder());
  const std::string before = first.folder();
  options_.seq_length = 5;
  EXPECT_NE(make(numbered(20)).folder(), before);
  options_.seq_length = 4;
  tokenizer_ = small_tokenizer(270);
  EXPECT_NE(make(numbered(20)).folder(), before);
}

TEST_F(TokenCacheTest, several_that_make_it_at_once_all_get_it) {
  std::vector<std::jthread> makers;
  std::array<std::string, 4> folders;
  for (std::string& folder : folders) {
    makers.emplace_back([this, &folder] {
      const TokenCache cache = make(numbered(300));
      EXPECT_EQ(cache.train().documents(), 300);
      folder = cache.folder();
    });
  }
  makers.clear();
  for (const std::string& folder : folders) EXPECT_EQ(folder, folders[0]);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(options_.directory)) {
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST_F(TokenCacheTest, a_part_is_set_aside_by_document) {
  options_.validation_fraction = 0.25;
  options_.seq_length = 16;
  options_.one_per_block = true;
  const TokenCache cache = make(numbered(400));
  EXPECT_EQ(cache.train().documents() + cache.validation().documents(), 400);
  EXPECT_NEAR(static_cast<double>(cache.validation().documents()), 100, 30);
  options_.seed = 1;
  const TokenCache other = make(numbered(400));
  EXPECT_NE(read_text(cache.folder() + "/validation.tokens"),
            read_text(other.folder() + "/validation.tokens"));
  options_.validation_fraction = 1e-9;
  EXPECT_TRUE(has(refusal([&] { make(numbered(3)); }), "too few"));
}

TEST_F(TokenCacheTest, documents_for_validation_can_be_given) {
  options_.validation = TextSource(std::vector<TextRecord>{{.text = "xy"}});
  const TokenCache cache = make({{.text = "abc"}});
  expect_block(cache.validation(), 0, "xy..", "y.__");
  EXPECT_EQ(cache.validation().documents(), 1);
}

TEST_F(TokenCacheTest, a_damaged_one_is_refused_and_made_again) {
  const std::string folder = make(numbered(20)).folder();
  const std::string tokens = folder + "/train.tokens";
  std::string content = read_text(tokens);
  content[9] ^= 1;
  write_text(tokens, content);
  EXPECT_TRUE(has(refusal([&] { TokenCache::open(folder); }), "train.tokens' is damaged"));
  EXPECT_TRUE(make(numbered(20)).made());
  write_text(tokens, read_text(tokens).substr(4));
  EXPECT_TRUE(has(refusal([&] { TokenCache::open(folder); }), "bytes instead of"));
  EXPECT_TRUE(make(numbered(20)).made());
  write_text(folder + "/cache.json", "{}");
  EXPECT_TRUE(has(refusal([&] { TokenCache::open(folder); }), "cache.json'"));
  EXPECT_TRUE(make(numbered(20)).made());
  EXPECT_FALSE(make(numbered(20)).made());
}

TEST_F(TokenCacheTest, a_failure_leaves_nothing_behind) {
  write_text(folder_ / "bad.jsonl", "{\"text\": \"a\"}\n{}\n");
  EXPECT_TRUE(has(refusal([&] {
                    TokenCache::open_or_make(tokenizer_, TextSource(folder_ / "bad.jsonl"),
                                             options_);
                  }),
                  "record 2 has no field 'text'"));
  EXPECT_TRUE(std::filesystem::is_empty(options_.directory));
}

TEST_F(TokenCacheTest, what_a_process_left_that_died_is_removed) {
  make(numbered(1));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string dead =
      concat(options_.directory, "/.making-", host.data(), "-999999999-abcdef");
  const std::string alive =
      concat(options_.directory, "/.making-", host.data(), "-", ::getpid(), "-abcdef");
  for (const std::string& leftover : {dead, alive}) std::filesystem::create_directory(leftover);
  make(numbered(2));
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(alive));
}

TEST_F(TokenCacheTest, threads_and_batches_do_not_change_what_is_written) {
  std::vector<TextRecord> records;
  // More than is encoded at a time.
  for (int i = 0; i < 1000; ++i) {
    const std::string words = concat("word ", i, " and ", i * 7, "\n");
    std::string text;
    while (text.size() < 9000) text += words;
    records.push_back({.text = std::move(text)});
  }
  options_.seq_length = 128;
  options_.threads = 1;
  const TokenCache one = make(records);
  options_.threads = 3;
  options_.directory = folder_ / "others";
  const TokenCache three = make(records);
  EXPECT_TRUE(three.made());
  // The description has the checksums of all tokens.
  EXPECT_EQ(read_text(one.folder() + "/cache.json"), read_text(three.folder() + "/cache.json"));
}

TEST_F(TokenCacheTest, options_that_cannot_work_are_refused) {
  options_.seq_length = 0;
  EXPECT_TRUE(has(refusal([&] { make(numbered(1)); }), "seq_length is 0"));
  options_.seq_length = 4;
  options_.validation_fraction = 1;
  EXPECT_TRUE(has(refusal([&] { make(numbered(1)); }), "validation_fraction is 1"));
  options_.validation_fraction = 0;
  const TokenBlocks blocks = make(numbered(1)).train();
  CachedIds input(4), labels(4);
  EXPECT_TRUE(
      has(refusal([&] { blocks.copy(blocks.size(), input, labels); }), "there is no block"));
  const std::string_view texts[] = {"a"};
  tokenizer_ = train_tokenizer(texts, {.vocab_size = 256, .special_tokens = {}});
  EXPECT_TRUE(has(refusal([&] { make(numbered(1)); }), "no end-of-text token"));
}

TEST_F(TokenCacheTest, beyond_a_limit_the_one_that_was_not_used_for_longest_goes_and_none_in_use) {
  std::vector<TokenCacheRemoval> removed;
  options_.removed = [&](const TokenCacheRemoval& removal) { removed.push_back(removal); };
  const auto records = [](char letter) {
    return std::vector<TextRecord>{{.text = std::string(40, letter)}};
  };
  const auto age = [](const std::string& folder, int hours) {
    const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours);
    std::filesystem::last_write_time(folder + "/cache.json", then);
  };
  std::string oldest, older;
  oldest = make(records('a')).folder();
  older = make(records('b')).folder();
  const TokenBlocks used = make(records('c')).train();  // without the cache itself
  age(oldest, 30);
  age(older, 20);
  age(make(records('c')).folder(), 10);  // now
  EXPECT_TRUE(removed.empty());          // no limit

  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(oldest)) {
    bytes += static_cast<std::int64_t>(entry.file_size());
  }
  options_.max_bytes = 3 * bytes + bytes / 2;
  const TokenCache fourth = make(records('d'));
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0].folder, oldest);
  EXPECT_EQ(removed[0].bytes, bytes);
  EXPECT_EQ(removed[0].unused_for / std::chrono::hours(1), 30);
  EXPECT_FALSE(std::filesystem::exists(oldest));

  options_.max_bytes = 1;
  const TokenCache fifth = make(records('e'));
  ASSERT_EQ(removed.size(), 2U);  // the others are in use, or were just made
  EXPECT_EQ(removed[1].folder, older);
  EXPECT_EQ(used.size(), make(records('c')).train().size());
  EXPECT_FALSE(make(records('c')).made());
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("tokens-")) << entry.path();
  }
}
