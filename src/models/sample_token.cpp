#include "models/sample_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace lockstep {
namespace {

// The best `count` tokens, likeliest first.
std::vector<std::int32_t> ranked(std::span<const float> logits, std::size_t count) {
  std::vector<std::int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(tokens.begin(), end, tokens.end(), likelier);
  tokens.erase(end, tokens.end());
  return tokens;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options,
                          double uniform) {
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }
  const auto all = static_cast<std::int64_t>(logits.size());
  const std::int64_t kept = options.top_k > 0 ? std::min(options.top_k, all) : all;
  const std::vector<std::int32_t> tokens = ranked(logits, static_cast<std::size_t>(kept));

  const double top = logits[tokens.front()];
  std::vector<double> weights;
  weights.reserve(tokens.size());
  double total = 0;
  for (const std::int32_t token : tokens) {
    weights.push_back(std::exp((logits[token] - top) / options.temperature));
    total += weights.back();
  }
  if (options.top_p < 1) {
    double sum = 0;
    std::size_t count = 0;
    while (count < weights.size() && (count == 0 || sum < options.top_p * total)) {
      sum += weights[count++];
    }
    weights.resize(count);
    total = sum;
  }
  double rest = uniform * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (rest < weights[i]) return tokens[i];
    rest -= weights[i];
  }
  return tokens[weights.size() - 1];  // rounding ate the last bit
}

}  // namespace lockstep
