#include "lockstep/random.h"

#include <cmath>
#include <numbers>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Keeps the numbers of one use apart from those of another with equal arguments.
constexpr std::uint64_t kSamples = 0x6c6f636b73746570;
constexpr std::uint64_t kMicroBatches = 0x6d6963726f626174;

// The finalizer of SplitMix64: a bijection in which every bit of the input reaches every bit of the
// result.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}

std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

using Block = std::array<std::uint32_t, 4>;

Block philox(Block counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {high(second) ^ counter[1] ^ key[0], low(second), high(first) ^ counter[3] ^ key[1],
               low(first)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

}  // namespace

Random::Random(std::uint64_t key, std::uint64_t stream)
    : key_{low(key), high(key)}, stream_(stream) {}

Random Random::of_sample(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
  return {mix(mix(seed ^ kSamples) + static_cast<std::uint64_t>(epoch)),
          static_cast<std::uint64_t>(index)};
}

Random Random::of_micro_batch(std::uint64_t seed, std::int64_t step, int slot,
                              std::int64_t micro_batch) {
  const std::uint64_t of_step = mix(mix(seed ^ kMicroBatches) + static_cast<std::uint64_t>(step));
  return {mix(of_step + static_cast<std::uint64_t>(slot)), static_cast<std::uint64_t>(micro_batch)};
}

Random::result_type Random::operator()() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const Block block = philox({low(block_), high(block_), low(stream_), high(stream_)}, key_);
  ++block_;
  spare_ = std::uint64_t{block[3]} << 32 | block[2];
  has_spare_ = true;
  return std::uint64_t{block[1]} << 32 | block[0];
}

double Random::uniform() {
  return static_cast<double>((*this)() >> 11) * 0x1.0p-53;
}

std::int64_t Random::below(std::int64_t bound) {
  if (bound < 1) throw InvalidArgument(concat("Random::below: bound is ", bound, "; at least 1"));
  // The first 2^64 mod bound numbers would make small results likelier; they are drawn again.
  const auto range = static_cast<std::uint64_t>(bound);
  const std::uint64_t unfair = (0 - range) % range;
  std::uint64_t number = (*this)();
  while (number < unfair) number = (*this)();
  return static_cast<std::int64_t>(number % range);
}

double Random::normal() {
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace lockstep
