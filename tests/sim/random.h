#pragma once

#include <cstdint>

#include "launch/messages.h"

namespace lockstep::sim {

/// The only source of chance in a simulation. The distributions of the standard library differ
/// between implementations; a seed must mean the same run everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  /// Both ends included.
  int between(int low, int high) {
    return low + static_cast<int>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

  Time between(Time low, Time high) {
    const auto range = static_cast<std::uint64_t>((high - low).count()) + 1;
    return low + Time(static_cast<std::int64_t>(next() % range));
  }

  bool percent(int chance) { return between(1, 100) <= chance; }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::sim
