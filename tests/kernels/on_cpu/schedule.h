#pragma once

#include <cstdint>

namespace lockstep::kernels::on_cpu {

/// When that happens which the device does on its own: tiles land in shared memory or are read from
/// it, products are added to their sums.
enum class Lateness {
  early,   // as soon as it was asked for
  late,    // when a wait returns that covers it, or when no thread can go on without it
  random,  // at any moment in between
};

/// What is left open by the device's rules. The same schedule runs the same way every time.
struct Schedule {
  std::uint64_t seed = 0;  // the order of threads, of clusters, and of what happens on its own
  Lateness lateness = Lateness::random;
};

/// Numbers that are the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  /// From 0 to `sides` - 1.
  std::uint64_t roll(std::uint64_t sides) {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t bits = state_;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return (bits ^ (bits >> 31)) % sides;
  }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::kernels::on_cpu
