#include "corpus.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/random.h"

namespace translate {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::SentencePair;

constexpr std::int64_t kEmbeddedPairs = 12000;
constexpr const char* kAdvice = "raise it, or leave such pairs out with --long-pairs skip";

std::vector<SentencePair> read_pairs(const Options& options) {
  if (options.data.empty()) {
    const std::int64_t count = options.pairs > 0 ? options.pairs : kEmbeddedPairs;
    return lockstep::embedded_sentence_pairs(static_cast<std::size_t>(count));
  }
  auto pairs = lockstep::read_sentence_pairs({.path = options.data,
                                              .target_path = options.target_data,
                                              .source_language = options.lang_src,
                                              .target_language = options.lang_tgt});
  if (options.pairs > 0 && std::ssize(pairs) > options.pairs) {
    pairs.resize(static_cast<std::size_t>(options.pairs));
  }
  return pairs;
}

// The places of the pairs in an order that depends on the seed alone.
std::vector<std::size_t> shuffled(std::size_t count, std::int64_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto random = lockstep::Random::of_sample(static_cast<std::uint64_t>(seed), /*epoch=*/-1, 0);
  for (std::size_t i = count; i > 1; --i) {
    const auto other = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)));
    std::swap(order[i - 1], order[other]);
  }
  return order;
}

std::string shortened(const std::string& sentence) {
  constexpr std::size_t kShown = 40;
  if (sentence.size() <= kShown) return sentence;
  std::size_t end = kShown;  // not within a character
  while (end > 0 && (static_cast<unsigned char>(sentence[end]) & 0xC0) == 0x80) --end;
  return sentence.substr(0, end) + "...";
}

std::size_t marks_of(const char* side) {
  return side == std::string_view("source") ? 2 : 1;
}

struct Chosen {
  std::vector<PairTokens> tokens;
  std::vector<std::size_t> places;  // of the pairs, in what was read
  std::int64_t skipped = 0;
};

/// The pairs at these places as tokens; those that are too long are refused or left out.
class Tokeniser {
 public:
  Tokeniser(const Options& options, const std::vector<SentencePair>& pairs,
            const Vocabulary& source, const Vocabulary& target)
      : options_(options), pairs_(pairs), source_(source), target_(target) {}

  Chosen operator()(std::span<const std::size_t> places) const {
    Chosen chosen;
    for (const std::size_t place : places) {
      PairTokens tokens{.source = source_.encode(pairs_[place].source),
                        .target = target_.encode(pairs_[place].target)};
      if (options_.long_pairs == "skip" &&
          (too_long("source", tokens.source) || too_long("target", tokens.target))) {
        ++chosen.skipped;
        continue;
      }
      const std::string what = concat("pair ", place + 1);
      check_length(what, "source", pairs_[place].source, tokens.source.size(), options_, kAdvice);
      check_length(what, "target", pairs_[place].target, tokens.target.size(), options_, kAdvice);
      chosen.tokens.push_back(std::move(tokens));
      chosen.places.push_back(place);
    }
    return chosen;
  }

 private:
  bool too_long(const char* side, const std::vector<std::int32_t>& tokens) const {
    return static_cast<std::int64_t>(tokens.size() + marks_of(side)) > options_.seq_len;
  }

  const Options& options_;
  const std::vector<SentencePair>& pairs_;
  const Vocabulary& source_;
  const Vocabulary& target_;
};

Vocabulary vocabulary_of(const Options& options, const std::string& directory,
                         const std::string& language, std::vector<std::string> sentences) {
  if (Vocabulary::is_saved(directory, language, options)) {
    return Vocabulary::load(directory, language, options);
  }
  return Vocabulary::learn(sentences, options);
}

}  // namespace

void check_length(const std::string& what, const char* side, const std::string& sentence,
                  std::size_t tokens, const Options& options, const char* advice) {
  const auto length = static_cast<std::int64_t>(tokens + marks_of(side));
  if (length <= options.seq_len) return;
  throw InvalidArgument(concat(what, ": the ", side, " \"", shortened(sentence), "\" has ", length,
                               " tokens with its marks, and --seq-len is ", options.seq_len, "; ",
                               advice));
}

Corpus make_corpus(const Options& options, const std::string& directory) {
  const std::vector<SentencePair> pairs = read_pairs(options);
  const std::vector<std::size_t> order = shuffled(pairs.size(), options.seed);
  const auto held =
      static_cast<std::size_t>(static_cast<double>(pairs.size()) * options.validation_fraction);
  const std::span<const std::size_t> all(order);
  std::vector<std::string> sources, targets;
  for (const std::size_t place : all.subspan(held)) {
    sources.push_back(pairs[place].source);
    targets.push_back(pairs[place].target);
  }
  Corpus corpus{.source = vocabulary_of(options, directory, options.lang_src, std::move(sources)),
                .target = vocabulary_of(options, directory, options.lang_tgt, std::move(targets)),
                .training = nullptr,
                .validation = nullptr,
                .held_out = {},
                .what = {}};
  const Tokeniser tokenise(options, pairs, corpus.source, corpus.target);
  Chosen training = tokenise(all.subspan(held)), validation = tokenise(all.first(held));
  if (training.tokens.empty()) {
    throw InvalidArgument(concat("there is no pair to learn from: ", pairs.size(), " were read, ",
                                 held, " of them kept for validation, ",
                                 training.skipped + validation.skipped, " longer than --seq-len ",
                                 options.seq_len));
  }
  const std::int64_t skipped = training.skipped + validation.skipped;
  corpus.what = concat(training.tokens.size(), " pairs to learn from, ", validation.tokens.size(),
                       " for validation",
                       options.data.empty() ? " (made up)" : concat(" from ", options.data),
                       skipped > 0 ? concat("; ", skipped, " are longer than --seq-len ",
                                            options.seq_len, " and were left out")
                                   : "",
                       "; vocabularies of ", corpus.source.size(), " and ", corpus.target.size(),
                       " ", options.tokenizer == "bpe" ? "byte pairs" : "words");
  for (const std::size_t place : validation.places) corpus.held_out.push_back(pairs[place]);
  corpus.training = std::make_shared<PairDataset>(std::move(training.tokens));
  if (!validation.tokens.empty()) {
    corpus.validation = std::make_shared<PairDataset>(std::move(validation.tokens));
  }
  return corpus;
}

}  // namespace translate
