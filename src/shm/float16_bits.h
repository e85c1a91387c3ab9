#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep {

// Conversions of float16 without instructions for it. They are static because sources that are
// compiled for different processors use them.

/// Exact.
static inline float float_of_half(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7fffU;
  // Shifted into place a half is a float that is 2^112 too small; the product also sets right what
  // was too small to be normal.
  const std::uint32_t shifted = magnitude << 13;
  float value;
  std::memcpy(&value, &shifted, sizeof(value));
  value *= 0x1p112F;
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (magnitude >= 0x7c00U) bits = shifted | 0x7f800000U;  // infinite, or not a number
  bits |= static_cast<std::uint32_t>(half & 0x8000U) << 16;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// To the nearest, ties to even.
static inline std::uint16_t half_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Adding one half lets the hardware round at the last bit of a number that is not normal.
  float small;
  std::memcpy(&small, &magnitude, sizeof(small));
  small += 0.5F;
  std::uint32_t small_bits;
  std::memcpy(&small_bits, &small, sizeof(small_bits));
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  std::uint32_t half = magnitude < 0x38800000U ? small_bits - 0x3f000000U : normal;
  if (magnitude >= 0x477ff000U) half = 0x7c00U;  // rounds to more than the largest half
  if (magnitude > 0x7f800000U) half = 0x7e00U;
  return static_cast<std::uint16_t>(half | sign);
}

}  // namespace lockstep
