#pragma once

#include <cstdint>

namespace lockstep {

/// Loops over float32 in memory that the compiler makes vector instructions of. exp() and what is
/// built on it are good to a few units in the last place; NaN stays NaN.

/// The largest of `count` numbers; minus infinity where there are none.
float largest(const float* values, std::int64_t count);

/// Replaces each x by exp(x - top), where top is at least each x, and returns their sum.
double exponentials(float* values, std::int64_t count, float top);

/// values *= factor.
void scale(float* values, std::int64_t count, float factor);

/// Sets each number to 0 with this probability and divides the others by what is left of 1. Which,
/// depends on `key` and the number's place.
void drop(float* values, std::int64_t count, float probability, std::uint32_t key);

/// out = GELU(x) in its form with tanh, slope = GELU'(x). Null: not wanted.
void gelu_tanh(const float* x, float* out, float* slope, std::int64_t count);

}  // namespace lockstep
