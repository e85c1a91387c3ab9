#pragma once

#include <cstdint>

namespace lockstep {

/// SplitMix64: small, and the same everywhere, which the distributions of std are not. For data
/// sets that are made by rules.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

  /// From `first` to `last`, both included. The ranges are small: the bias is too.
  int between(int first, int last) {
    return first + static_cast<int>(next() % static_cast<std::uint64_t>(last - first + 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep
