#pragma once

#include <cstdint>
#include <memory>

namespace c10 {
struct Device;
}

namespace lockstep {

/// What the random numbers of one piece of a training run depend on, and nothing else.
struct RandomPlace {
  std::uint64_t seed = 0;  // of the run
  std::int64_t step = 0;
  int slot = 0;
  std::int64_t micro_batch = 0;
  /// Tells apart uses that share a place, such as training and evaluation after the same step.
  std::uint64_t purpose = 0;

  bool operator==(const RandomPlace&) const = default;
};

/// A seed for this place. Neighbouring places have seeds that look unrelated.
std::uint64_t seed_of(const RandomPlace& place);

/// While it lives, torch's default generators (of the CPU, and of `device`) give the numbers of a
/// place: dropout and torch::rand draw the same whether the run came here without a stop, was
/// resumed, or is repeated by another process. Afterwards the generators are as they were, so that
/// what a program draws outside is its own.
///
/// Not thread-safe: the generators belong to the whole process.
class [[nodiscard]] RandomScope {
 public:
  RandomScope(const RandomPlace& place, c10::Device device);
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;
  ~RandomScope();

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace lockstep
