#include "corpus.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "hub.h"
#include "lockstep/embedded_instructions.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/memory_plan.h"
#include "lockstep/progress.h"
#include "lockstep/text_records.h"
#include "lockstep/token_cache.h"
#include "model_setup.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::PromptTemplate;
using lockstep::short_number;
using lockstep::TextRecord;
using lockstep::TextSource;
using lockstep::TokenBlocks;
using lockstep::TokenCache;
using lockstep::Tokenizer;

// A vocabulary does not get better for more.
constexpr std::size_t kTrainingBytes = 64 << 20;

// Words of all letters, which plurals need, too. Enough different series that a model has to find
// the rule, and steps small enough to find it soon.
const lockstep::EmbeddedInstructionsOptions kExercises = {
    .letters = 26, .largest_start = 60, .largest_difference = 3};

PromptTemplate prompt_template(const Options& options) {
  return options.prompt_template == "brief" ? PromptTemplate::brief() : PromptTemplate::alpaca();
}

// Only what all questions of a task share: the words in them are random, and a model learns to
// reverse them far sooner when each letter is a token.
Tokenizer tokenizer_of_tasks(const Options& options) {
  std::vector<std::string> texts;
  for (const std::string& task : lockstep::embedded_tasks()) {
    texts.push_back(prompt_template(options).prompt_of(
        TextRecord{.instruction = task, .input = "1", .output = {}, .text = {}}));
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return lockstep::train_tokenizer(views, {.vocab_size = options.vocab_size});
}

Tokenizer tokenizer_of_data(const Options& options, const TextSource& source) {
  std::vector<std::string> texts;
  std::size_t bytes = 0;
  const PromptTemplate prompt = prompt_template(options);
  source.for_each([&](TextRecord&& record) {
    if (bytes >= kTrainingBytes) return;
    texts.push_back(record.text.empty() ? prompt.prompt_of(record) + record.output
                                        : std::move(record.text));
    bytes += texts.back().size();
  });
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return lockstep::train_tokenizer(views, {.vocab_size = options.vocab_size});
}

Tokenizer choose_tokenizer(const Options& options, const CorpusOptions& corpus,
                           const TextSource& source) {
  if (!options.tokenizer.empty()) return Tokenizer::load(options.tokenizer);
  if (!options.model_name.empty()) return Tokenizer::load(model_directory(options));
  if (!corpus.tokenizer.empty()) return Tokenizer::load(corpus.tokenizer);
  return corpus.embedded ? tokenizer_of_tasks(options) : tokenizer_of_data(options, source);
}

// In bytes; 0: none.
std::int64_t cache_limit(const Options& options) {
  if (options.cache_limit == "0") return 0;
  try {
    return lockstep::parse_bytes(options.cache_limit);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--cache-limit: ", error.what(), ", or 0 to keep all"));
  }
}

std::string documents(std::int64_t count) {
  if (count == 1) return "1 document";
  return count < 1000 ? concat(count, " documents")
                      : concat(short_number(static_cast<double>(count)), " documents");
}

void report(const lockstep::TokenCacheProgress& progress) {
  std::fprintf(stderr, "train_llm: tokenised %s, %s tokens in %.0f s\n",
               documents(progress.documents).c_str(),
               short_number(static_cast<double>(progress.tokens)).c_str(), progress.seconds);
}

void report_removal(const lockstep::TokenCacheRemoval& removed, const Options& options) {
  std::fprintf(
      stderr,
      "train_llm: removed %s (%s of tokens of %s, not used for %lld h), to keep --cache-limit %s\n",
      removed.folder.c_str(), lockstep::show_bytes(removed.bytes).c_str(), removed.source.c_str(),
      static_cast<long long>(removed.unused_for / std::chrono::hours(1)),
      options.cache_limit.c_str());
}

TokenCache open_cache(const Options& options, const CorpusOptions& corpus,
                      const Tokenizer& tokenizer, const TextSource& source) {
  lockstep::TokenCacheOptions caching;
  caching.directory = options.cache_dir.empty()
                          ? default_cache_dir(lockstep::Environment::of_process())
                          : options.cache_dir;
  caching.seq_length = options.seq_length;
  caching.prompt = prompt_template(options);
  caching.answers_only = options.loss_on_answers;
  caching.whole_documents = options.packing == "whole";
  caching.one_per_block = options.packing == "single";
  caching.validation_fraction = options.eval_fraction;
  caching.seed = static_cast<std::uint64_t>(options.seed);
  caching.max_bytes = cache_limit(options);
  if (corpus.reports) caching.progress = report;
  caching.removed = [&](const auto& removed) { report_removal(removed, options); };
  return TokenCache::open_or_make(tokenizer, source, caching);
}

std::vector<Question> questions(const std::vector<TextRecord>& records, const Options& options) {
  std::vector<Question> questions;
  for (const TextRecord& record : records) {
    questions.push_back({.task = record.instruction,
                         .prompt = prompt_text(options, record.instruction, record.input),
                         .answer = record.output});
  }
  return questions;
}

std::string description(const TextSource& source, const CorpusOptions& corpus,
                        const TokenCache& cache) {
  const TokenBlocks& train = cache.train();
  return concat(
      corpus.embedded ? "embedded instructions" : source.name(), ": ", documents(train.documents()),
      ", ", short_number(static_cast<double>(train.tokens())), " tokens in ", train.size(),
      " blocks of ", train.seq_length(), "; ", cache.validation().size(),
      " blocks for validation; ", cache.made() ? "tokenised into " : "found in ", cache.folder());
}

std::shared_ptr<const lockstep::TokenDataset> dataset(const TokenBlocks& blocks) {
  return blocks.size() == 0 ? nullptr : std::make_shared<const lockstep::TokenDataset>(blocks);
}

}  // namespace

std::string prompt_text(const Options& options, const std::string& instruction,
                        const std::string& input) {
  return prompt_template(options).prompt_of(
      TextRecord{.instruction = instruction, .input = input, .output = {}, .text = {}});
}

Corpus make_corpus(const Options& options, const CorpusOptions& corpus) {
  std::vector<Question> held_out;
  std::optional<TextSource> source;
  if (corpus.embedded) {
    auto instructions = lockstep::embedded_instructions(kExercises);
    held_out = questions(instructions.held_out, options);
    source.emplace(std::move(instructions.train));
  } else {
    source.emplace(
        find_local(HubKind::dataset, options.dataset_name, lockstep::Environment::of_process()),
        lockstep::TextSourceOptions{.split = options.dataset_split});
  }
  Tokenizer tokenizer = choose_tokenizer(options, corpus, *source);
  const TokenCache cache = open_cache(options, corpus, tokenizer, *source);
  auto training = dataset(cache.train());
  if (!training) {
    throw InvalidArgument(concat(source->name(),
                                 " has fewer tokens than one block of --seq-length ",
                                 options.seq_length, " takes"));
  }
  return {.tokenizer = std::move(tokenizer),
          .training = std::move(training),
          .validation = dataset(cache.validation()),
          .held_out = std::move(held_out),
          .largest_id = cache.largest_id(),
          .what = description(*source, corpus, cache)};
}

}  // namespace train_llm
