#pragma once

// Matrices of bfloat16 for tests without libtorch.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/device.cuh"
#include "tests/kernels/on_cpu/schedule.h"

namespace lockstep::kernels::on_cpu {

/// Memory that copies can start at.
template <class T>
class Values {
 public:
  explicit Values(std::int64_t count, T value = {})
      : room_(static_cast<std::size_t>(count) + kMargin, value), count_(count) {}

  T* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(room_.data());
    return room_.data() + (kAlignment - address % kAlignment) % kAlignment / sizeof(T);
  }
  T& operator[](std::int64_t i) { return data()[i]; }
  std::int64_t size() const { return count_; }
  /// The values alone.
  std::vector<T> copy() { return {data(), data() + count_}; }

 private:
  static constexpr std::size_t kAlignment = 128, kMargin = kAlignment / sizeof(T);
  std::vector<T> room_;
  std::int64_t count_;
};

/// Roughly normal, with this deviation.
inline Values<Bf16> random_bf16(std::int64_t count, std::uint64_t seed, double scale = 1.0) {
  Values<Bf16> values(count);
  Dice dice(seed);
  constexpr int kTerms = 12;  // whose sum has a variance of 1
  constexpr std::uint64_t kSides = 1 << 20;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = -kTerms / 2.0;
    for (int j = 0; j < kTerms; ++j) {
      sum += static_cast<double>(dice.roll(kSides)) / static_cast<double>(kSides);
    }
    values[i] = to_bf16(static_cast<float>(sum * scale));
  }
  return values;
}

/// A difference in units of what one rounding to bfloat16 may do to a value of that size: at most 1
/// where all was computed exactly and rounded once.
inline double roundings(Bf16 result, double exact, double floor) {
  const double difference = std::fabs(static_cast<double>(to_float(result)) - exact);
  // Not a number must not pass for a small difference.
  return std::isnan(difference) ? INFINITY : difference * 256.0 / (std::fabs(exact) + floor);
}

}  // namespace lockstep::kernels::on_cpu
