#include "lockstep/word_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "text/files.h"
#include "text/utf8.h"
#include "text/word_splitter.h"
#include "text/word_vocabulary.h"

namespace lockstep {
namespace {

void check_word_training(const WordTokenizerTraining& options) {
  const auto specials = static_cast<std::int64_t>(options.special_tokens.size());
  if (specials == 0) {
    throw InvalidArgument(
        "WordTokenizer: special_tokens is empty; the first one stands for "
        "unknown words and is needed");
  }
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || !seen.insert(token).second) {
      throw InvalidArgument(
          concat("WordTokenizer: special token '", token, "' is empty or given twice"));
    }
  }
  if (options.vocab_size < specials) {
    throw InvalidArgument(concat("WordTokenizer: vocab_size is ", options.vocab_size,
                                 "; the special tokens alone are ", specials));
  }
  if (options.min_frequency < 0) {
    throw InvalidArgument(concat("WordTokenizer: min_frequency is ", options.min_frequency,
                                 "; it cannot be negative"));
  }
}

}  // namespace

class WordTokenizer::Impl {
 public:
  explicit Impl(Vocabulary vocabulary)
      : vocabulary_(std::move(vocabulary)), finder_(vocabulary_.added) {
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const std::string& token = vocabulary_.tokens[id];
      if (!token.empty()) ids_.emplace(token, static_cast<std::int32_t>(id));
    }
    unknown_ = ids_.at(vocabulary_.unknown);
    for (const AddedToken& token : vocabulary_.added) {
      if (token.special) specials_.insert(token.id);
    }
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }

  std::optional<std::int32_t> id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  std::int32_t unknown() const { return unknown_; }
  const AddedTokenFinder& finder() const { return finder_; }
  bool is_special(std::int32_t id) const { return specials_.contains(id); }

 private:
  Vocabulary vocabulary_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // point into the vocabulary
  std::set<std::int32_t> specials_;
  AddedTokenFinder finder_;
  std::int32_t unknown_ = 0;
};

WordTokenizer::WordTokenizer(Vocabulary vocabulary)
    : impl_(std::make_shared<const Impl>(std::move(vocabulary))) {}

WordTokenizer WordTokenizer::train(std::span<const std::string> texts,
                                   const WordTokenizerTraining& options) {
  check_word_training(options);
  std::unordered_map<std::string_view, std::int64_t> counts;  // point into the texts
  for (const std::string& text : texts) {
    for (const std::string_view word : split_words(text)) ++counts[word];
  }
  std::vector<std::pair<std::string_view, std::int64_t>> words;
  const std::set<std::string, std::less<>> specials(options.special_tokens.begin(),
                                                    options.special_tokens.end());
  for (const auto& [word, count] : counts) {
    // JSON could not hold what is not UTF-8.
    const bool whole = valid_utf8_prefix(word) == word.size();
    if (count >= options.min_frequency && whole && !specials.contains(word)) {
      words.emplace_back(word, count);
    }
  }
  std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Vocabulary vocabulary{.tokens = options.special_tokens,
                        .unknown = options.special_tokens.front()};
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    vocabulary.added.push_back({.id = static_cast<std::int32_t>(i),
                                .content = options.special_tokens[i],
                                .special = true});
  }
  for (const auto& [word, count] : words) {
    if (static_cast<std::int64_t>(vocabulary.tokens.size()) >= options.vocab_size) break;
    vocabulary.tokens.emplace_back(word);
  }
  return WordTokenizer(std::move(vocabulary));
}

WordTokenizer WordTokenizer::load(const std::string& path) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  const std::string file = folder ? concat(path, "/tokenizer.json") : path;
  return WordTokenizer(parse_word_vocabulary(read_file(file), file));
}

void WordTokenizer::save(const std::string& path) const {
  write_durably(path, word_vocabulary_json(impl_->vocabulary()));
}

std::vector<std::int32_t> WordTokenizer::encode(std::string_view text,
                                                const EncodeOptions& options) const {
  std::vector<AddedTokenFinder::Part> parts;
  impl_->finder().cut(text, options.split_special_tokens, parts);
  std::vector<std::int32_t> ids;
  for (const AddedTokenFinder::Part& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    for (const std::string_view word : split_words(part.text)) {
      ids.push_back(impl_->id_of(word).value_or(impl_->unknown()));
    }
  }
  return ids;
}

std::string WordTokenizer::decode(std::span<const std::int32_t> ids,
                                  const DecodeOptions& options) const {
  std::string text;
  bool first = true;
  for (const std::int32_t id : ids) {
    const std::string_view token = token_of(id);
    if (token.empty()) {
      throw InvalidArgument(
          concat("WordTokenizer: no token has the id ", id, "; ids are below ", size()));
    }
    if (options.skip_special_tokens && impl_->is_special(id)) continue;
    if (!std::exchange(first, false)) text += ' ';
    text += token;
  }
  return text;
}

std::optional<std::int32_t> WordTokenizer::id_of(std::string_view token) const {
  return impl_->id_of(token);
}

std::string_view WordTokenizer::token_of(std::int32_t id) const {
  const std::vector<std::string>& tokens = impl_->vocabulary().tokens;
  if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) return {};
  return tokens[static_cast<std::size_t>(id)];
}

std::int64_t WordTokenizer::size() const {
  return static_cast<std::int64_t>(impl_->vocabulary().tokens.size());
}

}  // namespace lockstep
