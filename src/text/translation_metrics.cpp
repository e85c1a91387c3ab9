#include "lockstep/translation_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/error.h"
#include "text/metric_tokens.h"

namespace lockstep {
namespace {

constexpr std::size_t kWordOrders = 4;       // of BLEU
constexpr std::size_t kCharacterOrders = 6;  // of chrF
constexpr double kBetaSquared = 4;           // chrF2: recall counts twice as much

// Where each sum is in TranslationCounts::values.
constexpr std::size_t kBleuHypothesis = 0, kBleuReference = 1;  // tokens
constexpr std::size_t kBleuCorrect = 2;                         // one for each order
constexpr std::size_t kBleuTotal = kBleuCorrect + kWordOrders;
constexpr std::size_t kChrf = kBleuTotal + kWordOrders;  // hypothesis, reference, both; each order
constexpr std::size_t kCharacterErrors = kChrf + 3 * kCharacterOrders;
constexpr std::size_t kCharacters = kCharacterErrors + 1;
constexpr std::size_t kWordErrors = kCharacters + 1;
constexpr std::size_t kWords = kWordErrors + 1;
static_assert(kWords + 1 == TranslationCounts::kSize);

using Values = std::array<std::int64_t, TranslationCounts::kSize>;

template <typename Tokens>
std::int64_t grams_in(const Tokens& tokens, std::size_t order) {
  return tokens.size() < order ? 0 : static_cast<std::int64_t>(tokens.size() - order + 1);
}

// Where the n-grams of a sequence begin, in the order of their content.
template <typename Tokens>
std::vector<std::size_t> sorted_grams(const Tokens& tokens, std::size_t order) {
  std::vector<std::size_t> begins(static_cast<std::size_t>(grams_in(tokens, order)));
  std::iota(begins.begin(), begins.end(), std::size_t{0});
  std::sort(begins.begin(), begins.end(), [&](std::size_t a, std::size_t b) {
    return std::lexicographical_compare(&tokens[a], &tokens[a] + order, &tokens[b],
                                        &tokens[b] + order);
  });
  return begins;
}

// How many n-grams two sequences share, each as often as the one that has fewer of it.
template <typename Tokens>
std::int64_t shared_grams(const Tokens& left, const Tokens& right, std::size_t order) {
  const std::vector<std::size_t> lefts = sorted_grams(left, order);
  const std::vector<std::size_t> rights = sorted_grams(right, order);
  std::int64_t shared = 0;
  for (std::size_t i = 0, k = 0; i < lefts.size() && k < rights.size();) {
    const auto* const a = &left[lefts[i]];
    const auto* const b = &right[rights[k]];
    const auto [at_a, at_b] = std::mismatch(a, a + order, b);
    if (at_a == a + order) {
      ++shared, ++i, ++k;
    } else if (*at_a < *at_b) {
      ++i;
    } else {
      ++k;
    }
  }
  return shared;
}

template <typename Tokens>
std::int64_t edit_distance(const Tokens& from, const Tokens& to) {
  std::vector<std::int64_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::int64_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::int64_t diagonal = row[0]++;
    for (std::size_t k = 0; k < to.size(); ++k) {
      const std::int64_t replaced = diagonal + (from[i] == to[k] ? 0 : 1);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replaced, row[k] + 1, diagonal + 1});
    }
  }
  return row.back();
}

void count_bleu(std::string_view hypothesis, std::string_view reference, Values& values) {
  const std::vector<std::string> left = tokens_13a(hypothesis);
  const std::vector<std::string> right = tokens_13a(reference);
  values[kBleuHypothesis] += static_cast<std::int64_t>(left.size());
  values[kBleuReference] += static_cast<std::int64_t>(right.size());
  for (std::size_t n = 0; n < kWordOrders; ++n) {
    values[kBleuCorrect + n] += shared_grams(left, right, n + 1);
    values[kBleuTotal + n] += grams_in(left, n + 1);
  }
}

void count_chrf(std::string_view hypothesis, std::string_view reference, Values& values) {
  std::u32string left = characters_of(hypothesis), right = characters_of(reference);
  std::erase_if(left, is_python_space);
  std::erase_if(right, is_python_space);
  for (std::size_t n = 0; n < kCharacterOrders; ++n) {
    const std::int64_t expected = grams_in(right, n + 1);
    // A sentence whose reference is too short for an order says nothing about it.
    values[kChrf + 3 * n] += expected == 0 ? 0 : grams_in(left, n + 1);
    values[kChrf + 3 * n + 1] += expected;
    values[kChrf + 3 * n + 2] += shared_grams(left, right, n + 1);
  }
}

void count_character_errors(std::string_view hypothesis, std::string_view reference,
                            Values& values) {
  const std::u32string expected = characters_of(reference);
  values[kCharacterErrors] += edit_distance(characters_of(hypothesis), expected);
  values[kCharacters] += static_cast<std::int64_t>(expected.size());
}

void count_word_errors(std::string_view hypothesis, std::string_view reference, Values& values) {
  const std::vector<std::string> expected = space_separated(reference);
  values[kWordErrors] += edit_distance(space_separated(hypothesis), expected);
  values[kWords] += static_cast<std::int64_t>(expected.size());
}

double rate(std::int64_t errors, std::int64_t total) {
  if (total > 0) return static_cast<double>(errors) / static_cast<double>(total);
  return errors == 0 ? 0 : std::numeric_limits<double>::infinity();
}

template <typename Count>
TranslationCounts counted(const char* metric, std::span<const std::string> hypotheses,
                          std::span<const std::string> references, Count count) {
  if (hypotheses.size() != references.size()) {
    throw InvalidArgument(concat(metric, ": there are ", hypotheses.size(), " hypotheses and ",
                                 references.size(), " references; each needs its own"));
  }
  if (hypotheses.empty()) {
    throw InvalidArgument(concat(metric, ": there are no sentences to compare"));
  }
  TranslationCounts counts;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    count(hypotheses[i], references[i], counts.values);
  }
  return counts;
}

}  // namespace

void TranslationCounts::add(std::string_view hypothesis, std::string_view reference) {
  count_bleu(hypothesis, reference, values);
  count_chrf(hypothesis, reference, values);
  count_character_errors(hypothesis, reference, values);
  count_word_errors(hypothesis, reference, values);
}

void TranslationCounts::add(const TranslationCounts& other) {
  for (std::size_t i = 0; i < kSize; ++i) values[i] += other.values[i];
}

double TranslationCounts::bleu() const {
  const auto value = [this](std::size_t index) { return static_cast<double>(values[index]); };
  if (values[kBleuCorrect] == 0) return 0;
  double logarithms = 0;
  double smoothing = 1;
  for (std::size_t n = 0; n < kWordOrders; ++n) {
    if (values[kBleuTotal + n] == 0) return 0;  // all sentences are shorter
    double correct = value(kBleuCorrect + n);
    if (correct == 0) correct = 1 / (smoothing *= 2);
    logarithms += std::log(100 * correct / value(kBleuTotal + n));
  }
  const double lengths = value(kBleuReference) / value(kBleuHypothesis);
  const double brevity = lengths > 1 ? std::exp(1 - lengths) : 1;
  return brevity * std::exp(logarithms / kWordOrders);
}

double TranslationCounts::chrf() const {
  double precision = 0, recall = 0;
  int orders = 0;
  for (std::size_t n = 0; n < kCharacterOrders; ++n) {
    const auto* const sums = &values[kChrf + 3 * n];
    if (sums[0] == 0 || sums[1] == 0) continue;
    precision += static_cast<double>(sums[2]) / static_cast<double>(sums[0]);
    recall += static_cast<double>(sums[2]) / static_cast<double>(sums[1]);
    ++orders;
  }
  if (precision == 0 || recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kBetaSquared) * precision * recall / (kBetaSquared * precision + recall);
}

double TranslationCounts::character_error_rate() const {
  return rate(values[kCharacterErrors], values[kCharacters]);
}

double TranslationCounts::word_error_rate() const {
  return rate(values[kWordErrors], values[kWords]);
}

double bleu(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return counted("bleu", hypotheses, references, count_bleu).bleu();
}

double chrf(std::span<const std::string> hypotheses, std::span<const std::string> references) {
  return counted("chrf", hypotheses, references, count_chrf).chrf();
}

double character_error_rate(std::span<const std::string> hypotheses,
                            std::span<const std::string> references) {
  return counted("character_error_rate", hypotheses, references, count_character_errors)
      .character_error_rate();
}

double word_error_rate(std::span<const std::string> hypotheses,
                       std::span<const std::string> references) {
  return counted("word_error_rate", hypotheses, references, count_word_errors).word_error_rate();
}

}  // namespace lockstep
