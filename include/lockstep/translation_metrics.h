#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// How near translations come to references, over a whole corpus: the sums over all sentences are
// compared, which is not the mean of the sentences. docs/translation_data.md has the definitions.
//
// Texts are UTF-8; a byte that is none counts as a character. Each throws InvalidArgument when
// there are no sentences, or not as many of the one as of the other.

/// From 0 to 100. Equal to sacrebleu's with its defaults: 13a tokens, upper and lower case as they
/// are, exponential smoothing, one reference.
double bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);

/// From 0 to 100. Equal to sacrebleu's with its defaults: chrF2, up to 6 characters, no words.
double chrf(std::span<const std::string> hypotheses, std::span<const std::string> references);

/// Characters to insert, delete or replace, by the characters of the references: 0 is perfect, and
/// more than 1 is possible. Equal to torchmetrics' CharErrorRate.
double character_error_rate(std::span<const std::string> hypotheses,
                            std::span<const std::string> references);

/// The same with words, which are what stands between white space. Equal to torchmetrics'
/// WordErrorRate.
double word_error_rate(std::span<const std::string> hypotheses,
                       std::span<const std::string> references);

/// The sums from which all four follow. Those of parts of a corpus add up to those of the whole,
/// so each rank can count its share and an all-reduce of `values` gives the scores of all.
class TranslationCounts {
 public:
  static constexpr std::size_t kSize = 32;

  void add(std::string_view hypothesis, std::string_view reference);
  void add(const TranslationCounts& other);

  // Of nothing: 0.
  double bleu() const;
  double chrf() const;
  // Where the references are empty: 0 when the hypotheses are, too, and infinite otherwise.
  double character_error_rate() const;
  double word_error_rate() const;

  std::array<std::int64_t, kSize> values{};
};

}  // namespace lockstep
