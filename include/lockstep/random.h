#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace at {
struct Generator;
}

namespace lockstep {

/// Random numbers that depend on where they are used and on nothing that happened before.
///
/// A generator is made from a seed and an address (a sample of an epoch, a micro-batch of a step)
/// and gives the same numbers whichever rank or thread asks, however often, in whatever order. It
/// costs nothing to make one. The numbers are those of Philox4x32-10, as on CUDA devices.
///
/// It is a uniform random bit generator, so std::shuffle and the std:: distributions take it. Those
/// distributions differ between standard libraries; uniform(), below() and normal() do not.
class Random {
 public:
  using result_type = std::uint64_t;

  /// For what is drawn while sample `index` of the dataset is made ready in this epoch.
  static Random of_sample(std::uint64_t seed, std::int64_t epoch, std::int64_t index);

  /// For what is drawn while a micro-batch goes through the model (dropout, noise).
  static Random of_micro_batch(std::uint64_t seed, std::int64_t step, int slot,
                               std::int64_t micro_batch);

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()();

  /// In [0, 1).
  double uniform();

  /// In [0, bound); every value is equally likely. Throws InvalidArgument when bound is below 1.
  std::int64_t below(std::int64_t bound);

  /// Mean 0, standard deviation 1.
  double normal();

  /// A generator for ATen's random operators, seeded with the next number drawn here.
  at::Generator generator();

 private:
  Random(std::uint64_t key, std::uint64_t stream);

  std::array<std::uint32_t, 2> key_;
  std::uint64_t stream_;     // the upper half of the counter
  std::uint64_t block_ = 0;  // the lower half: blocks of two numbers drawn so far
  std::uint64_t spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace lockstep
