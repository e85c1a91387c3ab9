// Reads sentence pairs, word tokenizers and texts to score; the first byte says which. What is
// accepted is UTF-8, and a tokenizer that was read is written and read as an equal one.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/error.h"
#include "lockstep/translation_metrics.h"
#include "text/pair_lines.h"
#include "text/utf8.h"
#include "text/word_vocabulary.h"

using namespace lockstep;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

bool is_utf8(const std::string& text) {
  return valid_utf8_prefix(text) == text.size();
}

void check_pair(const SentencePair& pair) {
  check(is_utf8(pair.source) && is_utf8(pair.target));
  check(!pair.source.empty() || !pair.target.empty());
  check(trimmed_sentence(pair.source) == pair.source);
}

void check_tokenizer(const std::string& text) {
  const WordTokenizer::Vocabulary read = parse_word_vocabulary(text, "tokenizer.json");
  const WordTokenizer tokenizer(read);
  const auto ids = tokenizer.encode(text);
  tokenizer.decode(ids);
  const auto again = parse_word_vocabulary(word_vocabulary_json(read), "again.json");
  check(again.tokens == read.tokens && again.added == read.added);
  check(WordTokenizer(again).encode(text) == ids);
}

void check_scores(std::string_view left, std::string_view right) {
  TranslationCounts counts;
  counts.add(left, right);
  check(counts.bleu() >= 0 && counts.bleu() < 100.001);
  check(counts.chrf() >= 0 && counts.chrf() < 100.001);
  check(counts.character_error_rate() >= 0 && counts.word_error_rate() >= 0);
  TranslationCounts same;
  same.add(left, left);
  check(same.character_error_rate() == 0 && same.word_error_rate() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view left = text.substr(0, text.size() / 2);
  const std::string_view right = text.substr(text.size() / 2);
  const std::string name = "file";
  try {
    switch (data[0] % 4) {
      case 0:
        parse_pair_table({text, name}, "en", "it", [](SentencePair&& pair) { check_pair(pair); });
        break;
      case 1:
        parse_parallel_lines({left, name}, {right, name},
                             [](SentencePair&& pair) { check_pair(pair); });
        break;
      case 2:
        check_tokenizer(std::string(text));
        break;
      default:
        check_scores(left.substr(0, 200), right.substr(0, 200));  // they take quadratic time
    }
  } catch (const InvalidArgument&) {
  }
  return 0;
}
