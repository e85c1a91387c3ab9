#include "shm/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "shm/float16_bits.h"
#include "shm/reduce_variants.h"

using namespace lockstep;

namespace {

template <typename T>
std::vector<T> reduced(const ReduceSpec& spec, const std::vector<std::vector<T>>& parts) {
  std::vector<const void*> data;
  for (const auto& part : parts) data.push_back(part.data());
  std::vector<T> out(parts[0].size());
  reduce_elements(spec, data, static_cast<std::int64_t>(out.size()), out.data());
  return out;
}

float float_of_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// The nearest of two neighbours; the even one of two that are equally near.
std::uint16_t nearest_bfloat16(float value) {
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double to_below = std::abs(double{value} - double{float_of_bfloat16(below)});
  const double to_above = std::abs(double{float_of_bfloat16(above)} - double{value});
  if (to_below != to_above) return to_below < to_above ? below : above;
  return below % 2 == 0 ? below : above;
}

}  // namespace

TEST(Reduce, adds_in_rank_order) {
  // The last bits depend on the order: 1 is lost next to 2^24, unless another 1 comes first.
  const float large = 0x1p24F;
  const ReduceSpec sum{.type = ElementType::float32};
  EXPECT_EQ(reduced<float>(sum, {{large}, {1}, {1}})[0], large);
  EXPECT_EQ(reduced<float>(sum, {{1}, {1}, {large}})[0], large + 2);
}

TEST(Reduce, divides_sums) {
  const ReduceSpec third{.type = ElementType::float32, .divisor = 3};
  EXPECT_EQ(reduced<float>(third, {{1}, {1}, {2}})[0], 4.0F / 3.0F);
  const ReduceSpec half{.type = ElementType::float64, .divisor = 2};
  EXPECT_EQ(reduced<double>(half, {{1}, {2}})[0], 1.5);
  const ReduceSpec whole{.type = ElementType::int32, .divisor = 2};
  EXPECT_EQ(reduced<std::int32_t>(whole, {{3, -3, 4}, {0, 0, 0}}),
            (std::vector<std::int32_t>{1, -2, 2}));
}

TEST(Reduce, whole_numbers_wrap_around) {
  EXPECT_EQ(reduced<std::int8_t>({.type = ElementType::int8}, {{127}, {1}})[0], -128);
  EXPECT_EQ(reduced<std::uint16_t>({.type = ElementType::uint16, .op = ReduceOperator::product},
                                   {{65535}, {65535}})[0],
            1);
  EXPECT_EQ(reduced<std::int64_t>({.type = ElementType::int64},
                                  {{std::numeric_limits<std::int64_t>::max()}, {1}})[0],
            std::numeric_limits<std::int64_t>::min());
}

TEST(Reduce, truth_values_stay_truth_values) {
  const auto of = [](ReduceOperator op) {
    return reduced<std::uint8_t>({.type = ElementType::boolean, .op = op},
                                 {{0, 0, 1, 1}, {0, 1, 0, 1}});
  };
  EXPECT_EQ(of(ReduceOperator::sum), (std::vector<std::uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(of(ReduceOperator::product), (std::vector<std::uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(of(ReduceOperator::min), (std::vector<std::uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(of(ReduceOperator::max), (std::vector<std::uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(of(ReduceOperator::bit_xor), (std::vector<std::uint8_t>{0, 1, 1, 0}));
}

TEST(Reduce, bits_of_numbers_that_are_not_whole_are_refused) {
  const ReduceSpec spec{.type = ElementType::bfloat16, .op = ReduceOperator::bit_or};
  EXPECT_THROW(check_reducible(spec), InvalidArgument);
  EXPECT_THROW(reduced<std::uint16_t>(spec, {{1}}), InvalidArgument);
}

TEST(Reduce, bfloat16_is_added_in_float_and_rounded_once) {
  std::mt19937 random(7);
  std::vector<std::vector<std::uint16_t>> parts(3, std::vector<std::uint16_t>(20'000));
  for (auto& part : parts) {
    for (auto& bits : part) bits = nearest_bfloat16(std::ldexp(float(random() % 4096) - 2048, -9));
  }
  const auto sums = reduced<std::uint16_t>({.type = ElementType::bfloat16}, parts);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float sum = float_of_bfloat16(parts[0][i]) + float_of_bfloat16(parts[1][i]);
    sum += float_of_bfloat16(parts[2][i]);
    ASSERT_EQ(sums[i], nearest_bfloat16(sum)) << i;
  }
  const std::uint16_t not_a_number = 0x7fff;
  EXPECT_TRUE(std::isnan(float_of_bfloat16(
      reduced<std::uint16_t>({.type = ElementType::bfloat16}, {{not_a_number}, {0}})[0])));
}

TEST(Float16, goes_to_float_and_back) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_of_half(half);
    if ((bits & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(float_of_half(half_of_float(value))));
      continue;
    }
    ASSERT_EQ(half_of_float(value), half) << bits;
    // Halfway to the next one it goes to the even one; a little nearer, to the nearest.
    if ((bits & 0x7fff) >= 0x7bff) continue;
    const float next = float_of_half(static_cast<std::uint16_t>(bits + 1));
    const float middle = (value + next) / 2;
    ASSERT_EQ(half_of_float(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(half_of_float(std::nextafter(middle, value)), bits) << bits;
    ASSERT_EQ(half_of_float(std::nextafter(middle, next)), bits + 1) << bits;
  }
  EXPECT_EQ(half_of_float(1e6F), 0x7c00);
}

TEST(Float16, is_reduced_like_that_on_this_processor) {
  std::mt19937 random(8);
  std::vector<std::vector<std::uint16_t>> parts(2, std::vector<std::uint16_t>(30'000));
  for (auto& part : parts) {
    for (auto& bits : part) bits = static_cast<std::uint16_t>(random() & 0xfbff);  // finite
  }
  const auto sums = reduced<std::uint16_t>({.type = ElementType::float16}, parts);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float sum = float_of_half(parts[0][i]) + float_of_half(parts[1][i]);
    ASSERT_EQ(sums[i], half_of_float(sum)) << i;
  }
}

// What the processor offers has no influence on the bits.
TEST(Reduce, every_instruction_set_gives_the_same_bits) {
  std::mt19937 random(9);
  for (const auto type : {ElementType::float32, ElementType::bfloat16, ElementType::float16,
                          ElementType::float64, ElementType::int16}) {
    constexpr std::int64_t kCount = 5'003;
    const std::size_t bytes = kCount * bytes_of(type);
    std::vector<std::vector<std::byte>> parts(5, std::vector<std::byte>(bytes));
    for (auto& part : parts) {
      for (auto& each : part) each = static_cast<std::byte>(random() & 0x3f);
    }
    std::vector<const void*> data;
    for (const auto& part : parts) data.push_back(part.data());
    const ReduceSpec spec{.type = type, .divisor = 5};
    const auto result_of = [&](void (*reduce)(const ReduceJob&)) {
      std::vector<std::byte> out(bytes);
      reduce({.spec = spec,
              .parts = data.data(),
              .part_count = 5,
              .count = kCount,
              .out = out.data()});
      return out;
    };
    const std::vector<std::byte> portable = result_of(reduce_portable);
    std::vector<std::byte> chosen(bytes);
    reduce_elements(spec, data, kCount, chosen.data());
    EXPECT_EQ(chosen, portable) << name_of(type) << " on " << reduce_instruction_set();
#if defined(__x86_64__)
    // Where there is more, it is not the one that is chosen.
    if (__builtin_cpu_supports("avx2"))
      EXPECT_EQ(result_of(reduce_avx2), portable) << name_of(type);
#endif
  }
}
