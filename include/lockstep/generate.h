#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/gpt2.h"

namespace lockstep {

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  /// 0: always the likeliest token. Otherwise logits are divided by it before one is drawn.
  double temperature = 1;
  /// Draw among the k likeliest tokens; 0: among all.
  std::int64_t top_k = 0;
  /// Draw among the likeliest tokens that together have this probability, at least one; 1: all.
  double top_p = 1;
  std::uint64_t seed = 0;
  /// A sequence ends where this token would come, which is not part of the result.
  std::optional<std::int32_t> stop_token = std::nullopt;
  /// False: compute the whole sequence again for every token. The same tokens, slowly.
  bool use_cache = true;
  /// Called with each token as it is chosen, and the number of its prompt.
  std::function<void(std::size_t prompt, std::int32_t token)> on_token = {};
};

enum class GenerateEnd {
  stop_token,
  max_new_tokens,
  n_positions,  // the model cannot look further
};

struct Generated {
  std::vector<std::int32_t> tokens;  // without the prompt
  GenerateEnd end = GenerateEnd::max_new_tokens;
};

/// Continues each prompt. What is drawn for a prompt depends on the seed, the prompt's number and
/// the model alone, not on its neighbours. The model is put into evaluation mode for the time.
///
/// Throws InvalidArgument for an empty prompt, one with more than n_positions tokens, a token
/// outside of the vocabulary and options out of range.
std::vector<Generated> generate(Gpt2& model, const std::vector<std::vector<std::int32_t>>& prompts,
                                const GenerateOptions& options = {});

}  // namespace lockstep
