#include "models/vector_loops.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "models/vector4.h"

namespace lockstep {
namespace {

// Sums are kept in so many vectors, since one has to wait for itself.
constexpr int kParts = 4;
constexpr std::int64_t kLanes = 4 * kParts;
constexpr std::int64_t kBlock = 512;  // sums of this many numbers are exact enough in float

using Bits4 = std::int32_t __attribute__((vector_size(16)));

[[gnu::always_inline]] inline Vector4 all(float value) {
  return Vector4{value, value, value, value};
}

[[gnu::always_inline]] inline Vector4 choose(Bits4 condition, Vector4 yes, Vector4 no) {
  return std::bit_cast<Vector4>((condition & std::bit_cast<Bits4>(yes)) |
                                (~condition & std::bit_cast<Bits4>(no)));
}

// exp(x), by a series on what is left of x after multiples of log(2). Below -87 it is 0 and above
// 87 it stays where it is, since float32's normal numbers end there.
[[gnu::always_inline]] inline Vector4 exp4(Vector4 x) {
  const Vector4 rounder = all(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Vector4 shifted = x * 1.44269504088896341f + rounder;
  const Vector4 whole = shifted - rounder;
  const Vector4 rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Vector4 series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * (rest * rest) + (rest + 1.f);
  // 2^whole: the low bits of `shifted` are the whole number itself.
  using Unsigned4 = std::uint32_t __attribute__((vector_size(16)));
  const Unsigned4 power = (std::bit_cast<Unsigned4>(shifted) + 127u) << 23;
  const Vector4 result = series * std::bit_cast<Vector4>(power);
  // NaN is neither.
  return choose(x > all(87.f), all(6.07603e37f), choose(x < all(-87.f), all(0.f), result));
}

// GELU's form with tanh is x * sigmoid(2 u), where u = sqrt(2 / pi) * (x + 0.044715 x^3).
constexpr float kTwice = 1.5957691216057308f;  // 2 * sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

struct Gelu4 {
  Vector4 value;
  Vector4 slope;
};

[[gnu::always_inline]] inline Gelu4 gelu4(Vector4 x) {
  const Vector4 square = x * x;
  const Vector4 sigmoid = 1.f / (exp4(-kTwice * x * (1.f + kCubic * square)) + 1.f);
  const Vector4 value = x * sigmoid;
  return {value, sigmoid + value * (1.f - sigmoid) * (kTwice + 3.f * kTwice * kCubic * square)};
}

// Calls `step(i, load, store)` for every i in steps of four; at the end, where there are fewer,
// load and store do only those.
template <typename Step>
[[gnu::always_inline]] inline void by_fours(std::int64_t count, Step step) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) step(i, load4, store4);
  if (i == count) return;
  const auto bytes = static_cast<std::size_t>(count - i) * sizeof(float);
  const auto load_some = [bytes](const float* from) {
    Vector4 value = {};
    std::memcpy(&value, from, bytes);
    return value;
  };
  const auto store_some = [bytes](float* to, Vector4 value) { std::memcpy(to, &value, bytes); };
  step(i, load_some, store_some);
}

double sum_of(const float* values, std::int64_t count) {
  Vector4 sums[kParts] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) sums[part] += load4(values + i + 4 * part);
  }
  const Vector4 sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = (static_cast<double>(sum[0]) + sum[1]) + (static_cast<double>(sum[2]) + sum[3]);
  for (; i < count; ++i) total += values[i];
  return total;
}

}  // namespace

float largest(const float* values, std::int64_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  Vector4 best[kParts];
  for (Vector4& part : best) part = all(kLowest);
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const Vector4 value = load4(values + i + 4 * part);
      best[part] = choose(value > best[part], value, best[part]);
    }
  }
  float result = kLowest;
  for (const Vector4& part : best) {
    for (int lane = 0; lane < 4; ++lane) result = part[lane] > result ? part[lane] : result;
  }
  for (; i < count; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

double exponentials(float* values, std::int64_t count, float top) {
  double total = 0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    float* const block = values + begin;
    by_fours(size, [=](std::int64_t i, auto load, auto store) {
      store(block + i, exp4(load(block + i) - top));
    });
    total += sum_of(block, size);
  }
  return total;
}

void scale(float* values, std::int64_t count, float factor) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

void drop(float* values, std::int64_t count, float probability, std::uint32_t key) {
  const auto limit = static_cast<std::int32_t>(static_cast<double>(probability) * 0x1p31);
  const float factor = 1.f / (1.f - probability);
  for (std::int64_t i = 0; i < count; ++i) {
    // Every bit of the place reaches every bit of the result.
    std::uint32_t mixed = key + static_cast<std::uint32_t>(i) * 0x9e3779b9u;
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
    mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35u;
    const auto drawn = static_cast<std::int32_t>((mixed ^ (mixed >> 16)) >> 1);
    // By bits and not by a product: 0 times infinity would be NaN.
    const std::int32_t kept = drawn < limit ? 0 : -1;
    values[i] = std::bit_cast<float>(std::bit_cast<std::int32_t>(values[i] * factor) & kept);
  }
}

void gelu_tanh(const float* x, float* out, float* slope, std::int64_t count) {
  by_fours(count, [=](std::int64_t i, auto load, auto store) {
    const Gelu4 gelu = gelu4(load(x + i));
    store(out + i, gelu.value);
    if (slope != nullptr) store(slope + i, gelu.slope);
  });
}

}  // namespace lockstep
