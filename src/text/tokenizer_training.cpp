#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/error.h"
#include "lockstep/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/gpt2_scanner.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const auto both = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                      static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>((both * 0x9e3779b97f4a7c15) >> 16);
  }
};

struct Word {
  std::vector<std::int32_t> ids;
  std::int64_t count = 0;
};

// A pair that may be merged next, and the words that have it.
struct Candidate {
  std::int64_t count = 0;
  Pair pair;
  std::vector<std::size_t> words;

  // The most frequent first, of equals the one with smaller ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(const TokenizerTraining& options) : options_(options) {
    for (const std::string& token : options_.special_tokens) add_token(token);
    // By the characters that stand for them, which is the order of GPT-2's vocabulary.
    std::vector<unsigned char> bytes(256);
    for (unsigned byte = 0; byte < 256; ++byte) bytes[byte] = static_cast<unsigned char>(byte);
    std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
      return letter_of_byte(a) < letter_of_byte(b);
    });
    for (const unsigned char byte : bytes) {
      byte_ids_[byte] = add_token(name_of_bytes(std::string(1, static_cast<char>(byte))));
    }
  }

  void add_text(std::string_view text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = end_of_gpt2_piece(text, begin);
      ++word_counts_[std::string(text.substr(begin, end - begin))];
      begin = end;
    }
  }

  TokenizerSpec learn() {
    make_words();
    count_pairs();
    while (static_cast<std::int64_t>(names_.size()) < options_.vocab_size && merge_next()) {
    }
    TokenizerSpec spec;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      spec.vocabulary.emplace_back(names_[i], static_cast<std::int32_t>(i));
    }
    spec.merges = std::move(merges_);
    for (const std::string& token : options_.special_tokens) {
      spec.added.push_back({.id = ids_.at(token), .content = token, .special = true});
    }
    return spec;
  }

 private:
  std::int32_t add_token(const std::string& name) {
    const auto [entry, is_new] = ids_.try_emplace(name, static_cast<std::int32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return entry->second;
  }

  void make_words() {
    words_.reserve(word_counts_.size());
    for (const auto& [text, count] : word_counts_) {
      Word word{.count = count};
      for (const char byte : text) word.ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      words_.push_back(std::move(word));
    }
    word_counts_.clear();
  }

  void change(const Pair& pair, std::int64_t by, std::size_t word) {
    pair_counts_[pair] += by * words_[word].count;
    if (by > 0) touched_[pair].insert(word);
  }

  void count_pairs() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::vector<std::int32_t>& ids = words_[i].ids;
      for (std::size_t k = 0; k + 1 < ids.size(); ++k) change({ids[k], ids[k + 1]}, 1, i);
    }
    enqueue_touched();
  }

  void enqueue_touched() {
    for (const auto& [pair, words] : touched_) {
      const std::int64_t count = pair_counts_[pair];
      if (count > 0) queue_.push({count, pair, {words.begin(), words.end()}});
    }
    touched_.clear();
  }

  // False when there is nothing left that is frequent enough.
  bool merge_next() {
    while (!queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      const std::int64_t count = pair_counts_[best.pair];
      if (count != best.count) {  // other merges took some of them away
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (count < 1 || count < options_.min_frequency) return false;
      const std::string left = names_[static_cast<std::size_t>(best.pair.first)];
      const std::string right = names_[static_cast<std::size_t>(best.pair.second)];
      const std::int32_t merged = add_token(left + right);
      merges_.emplace_back(left, right);
      for (const std::size_t word : best.words) merge_in_word(word, best.pair, merged);
      enqueue_touched();
      return true;
    }
    return false;
  }

  void merge_in_word(std::size_t index, const Pair& pair, std::int32_t merged) {
    std::vector<std::int32_t>& ids = words_[index].ids;
    std::size_t write = 0;
    for (std::size_t read = 0; read < ids.size(); ++read, ++write) {
      if (read + 1 >= ids.size() || ids[read] != pair.first || ids[read + 1] != pair.second) {
        ids[write] = ids[read];
        continue;
      }
      if (write > 0) {
        change({ids[write - 1], pair.first}, -1, index);
        change({ids[write - 1], merged}, 1, index);
      }
      if (read + 2 < ids.size()) {
        change({pair.second, ids[read + 2]}, -1, index);
        change({merged, ids[read + 2]}, 1, index);
      }
      ids[write] = merged;
      ++read;
    }
    ids.resize(write);
  }

  const TokenizerTraining& options_;
  std::vector<std::string> names_;  // by id
  std::unordered_map<std::string, std::int32_t> ids_;
  std::int32_t byte_ids_[256] = {};
  std::unordered_map<std::string, std::int64_t> word_counts_;
  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t, PairHash> pair_counts_;
  std::unordered_map<Pair, std::unordered_set<std::size_t>, PairHash> touched_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::pair<std::string, std::string>> merges_;
};

void validate(const TokenizerTraining& options) {
  const auto smallest = static_cast<std::int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < smallest || options.vocab_size > kLargestTokenId) {
    throw InvalidArgument(concat("train_tokenizer: vocab_size is ", options.vocab_size,
                                 "; with the 256 bytes and ", options.special_tokens.size(),
                                 " special tokens it is from ", smallest, " to ", kLargestTokenId));
  }
  if (options.min_frequency < 0) {
    throw InvalidArgument(concat("train_tokenizer: min_frequency is ", options.min_frequency,
                                 "; it cannot be negative"));
  }
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    // One character long it could be one of the bytes.
    if (token.size() < 2 || !seen.insert(token).second) {
      throw InvalidArgument(concat("train_tokenizer: special token '", token,
                                   "' is shorter than two characters or given twice"));
    }
  }
}

}  // namespace

Tokenizer train_tokenizer(const std::function<std::optional<std::string_view>()>& next,
                          const TokenizerTraining& options) {
  validate(options);
  Trainer trainer(options);
  for (auto text = next(); text; text = next()) trainer.add_text(*text);
  return Tokenizer(trainer.learn());
}

Tokenizer train_tokenizer(std::span<const std::string_view> texts,
                          const TokenizerTraining& options) {
  std::size_t at = 0;
  return train_tokenizer(
      [&]() -> std::optional<std::string_view> {
        if (at == texts.size()) return std::nullopt;
        return texts[at++];
      },
      options);
}

}  // namespace lockstep
