#include "lockstep/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::InvalidArgument;
using lockstep::Random;

TEST(Random, depends_on_its_address_alone) {
  Random first = Random::of_sample(1, 2, 3);
  Random second = Random::of_sample(1, 2, 3);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(first(), second());
}

TEST(Random, every_part_of_an_address_counts) {
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 63}) {
    for (const std::int64_t epoch : {0, 1, 7}) {
      for (const std::int64_t index : {0ll, 1ll, 1ll << 40}) {
        seen.insert(Random::of_sample(seed, epoch, index)());
        seen.insert(Random::of_micro_batch(seed, epoch, 0, index)());
        seen.insert(Random::of_micro_batch(seed, epoch, 1, index)());
      }
    }
  }
  EXPECT_EQ(seen.size(), 81u);
}

// Other machines and releases must draw the same.
TEST(Random, draws_the_numbers_it_always_drew) {
  Random random = Random::of_sample(42, 3, 1234567);
  const std::array<std::uint64_t, 4> got{random(), random(), random(), random()};
  const std::array<std::uint64_t, 4> expected{0xd09756ca9d97c8b0, 0x6472d636827006cc,
                                              0x55ccba2d5c0d9cf8, 0x4a544dcca88da719};
  EXPECT_EQ(got, expected);
}

TEST(Random, uniform_numbers_fill_their_range) {
  Random random = Random::of_sample(0, 0, 0);
  double sum = 0, lowest = 1, highest = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double number = random.uniform();
    sum += number;
    lowest = std::min(lowest, number);
    highest = std::max(highest, number);
  }
  EXPECT_GE(lowest, 0.0);
  EXPECT_LT(highest, 1.0);
  EXPECT_LT(lowest, 0.001);
  EXPECT_GT(highest, 0.999);
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(Random, samples_that_follow_each_other_are_not_alike) {
  // The first numbers of many generators are themselves uniform.
  double sum = 0, product = 0, last = 0.5;
  for (int index = 0; index < 100'000; ++index) {
    const double number = Random::of_sample(0, 0, index).uniform();
    sum += number;
    product += (number - 0.5) * (last - 0.5);
    last = number;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
  EXPECT_NEAR(product / 100'000, 0.0, 0.002);
}

TEST(Random, below_gives_every_value_equally_often) {
  Random random = Random::of_micro_batch(0, 0, 0, 0);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts.at(random.below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(random.below(1), 0);
  EXPECT_THROW(random.below(0), InvalidArgument);
}

TEST(Random, normal_numbers_have_mean_0_and_deviation_1) {
  Random random = Random::of_sample(9, 0, 0);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double number = random.normal();
    sum += number;
    squares += number * number;
  }
  EXPECT_NEAR(sum / 100'000, 0.0, 0.02);
  EXPECT_NEAR(std::sqrt(squares / 100'000), 1.0, 0.01);
}

TEST(Random, shuffles_with_the_standard_library) {
  std::vector<int> numbers(100), before(100);
  for (int i = 0; i < 100; ++i) numbers[i] = before[i] = i;
  std::shuffle(numbers.begin(), numbers.end(), Random::of_sample(1, 1, 1));
  EXPECT_NE(numbers, before);
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers, before);
}
