#pragma once

#include <cstdint>
#include <span>

namespace lockstep {

struct SampleOptions {
  double temperature = 1;  // 0: the likeliest
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // 1: all
};

/// Draws a token from logits. `uniform` is in [0, 1). Ties go to the smaller token.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options,
                          double uniform);

}  // namespace lockstep
