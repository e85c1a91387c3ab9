#include "shm/pack.h"

#include <bit>
#include <cstring>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "shm/pack_variants.h"

using namespace lockstep;

namespace {

using Packed = std::vector<std::uint8_t>;

struct PackLoops {
  const char* name;
  std::size_t (*pack)(const PackJob& job);
  bool (*unpack)(const PackJob& job);
};

// Those of this processor.
std::vector<PackLoops> all_loops() {
  std::vector<PackLoops> loops{{"portable", pack_portable, unpack_portable}};
#if defined(__x86_64__)
  if (pack_instruction_set() == std::string("avx2")) {
    loops.push_back({"avx2", pack_avx2, unpack_avx2});
  }
#endif
  return loops;
}

template <typename Bits>
constexpr ElementType kTypeOf = sizeof(Bits) == 4 ? ElementType::float32 : ElementType::bfloat16;

// All variants must make the same bytes and read each other's; returns the packed size, 0: not
// smaller. Memory is of the exact size, for sanitizers to see what is outside.
template <typename Bits>
std::size_t expect_to_come_back(const std::vector<Bits>& numbers) {
  const std::size_t bytes = numbers.size() * sizeof(Bits);
  std::vector<std::uint8_t> scratch(kPackStrips * pack_strip(bytes / 2));
  Packed first;
  for (const PackLoops& loops : all_loops()) {
    Packed packed(FloatPacker::packed_limit(bytes));
    packed.resize(loops.pack({.wide = sizeof(Bits) == 4,
                              .in = reinterpret_cast<const std::uint8_t*>(numbers.data()),
                              .in_bytes = bytes,
                              .out = packed.data(),
                              .out_bytes = packed.size(),
                              .scratch = scratch.data()}));
    packed.shrink_to_fit();
    if (first.empty()) first = packed;
    EXPECT_EQ(packed, first) << loops.name;
    if (packed.empty()) continue;
    std::vector<Bits> back(numbers.size(), Bits{0x55});
    EXPECT_TRUE(loops.unpack({.in = packed.data(),
                              .in_bytes = packed.size(),
                              .out = reinterpret_cast<std::uint8_t*>(back.data()),
                              .out_bytes = bytes,
                              .scratch = scratch.data()}))
        << loops.name;
    EXPECT_TRUE(back == numbers) << loops.name << ", " << numbers.size();
  }
  return first.size();
}

std::vector<std::uint32_t> normal_floats(std::size_t count, float scale = 1e-3F) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0, scale);
  std::vector<std::uint32_t> numbers(count);
  for (auto& each : numbers) each = std::bit_cast<std::uint32_t>(normal(engine));
  return numbers;
}

std::vector<std::uint16_t> normal_bfloats(std::size_t count) {
  std::vector<std::uint16_t> numbers;
  for (const std::uint32_t each : normal_floats(count)) {
    numbers.push_back(static_cast<std::uint16_t>(each >> 16));
  }
  return numbers;
}

Packed packed_floats(const std::vector<std::uint32_t>& numbers) {
  Packed packed(FloatPacker::packed_limit(4 * numbers.size()));
  packed.resize(
      FloatPacker().pack(ElementType::float32, numbers.data(), 4 * numbers.size(), packed.data()));
  return packed;
}

double ratio_of(std::size_t packed, std::size_t bytes) {
  return static_cast<double>(packed) / static_cast<double>(bytes);
}

}  // namespace

TEST(Pack, normal_numbers_get_smaller_and_come_back) {
  constexpr std::size_t n = 65'536;
  const double wide = ratio_of(expect_to_come_back(normal_floats(n)), 4 * n);
  EXPECT_GT(wide, 0.75);  // 24 of 32 bits are random
  EXPECT_LT(wide, 0.85);
  const double narrow = ratio_of(expect_to_come_back(normal_bfloats(n)), 2 * n);
  EXPECT_GT(narrow, 0.5);
  EXPECT_LT(narrow, 0.7);
}

TEST(Pack, what_has_zeros_in_its_lower_bits_gets_smaller_still) {
  std::vector<std::uint32_t> sums = normal_floats(65'536);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto a = std::bit_cast<float>(sums[i] & 0xffff0000U);
    const auto b = std::bit_cast<float>(sums[sums.size() - 1 - i] & 0xffff0000U);
    sums[i] = std::bit_cast<std::uint32_t>(a + b);
  }
  EXPECT_LT(ratio_of(expect_to_come_back(sums), 4 * sums.size()), 0.5);
}

TEST(Pack, any_count_comes_back) {
  std::vector<std::size_t> counts{0, 1, 2, 3, 31, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025};
  for (std::size_t count = 4090; count < 4230; ++count) counts.push_back(count);
  for (const std::size_t count : counts) {
    const bool smaller = expect_to_come_back(normal_floats(count)) > 0;
    EXPECT_TRUE(smaller || count < 1024) << count;
    EXPECT_EQ(expect_to_come_back(normal_bfloats(count)) > 0, smaller) << count;
  }
}

TEST(Pack, every_bfloat16_comes_back) {
  // Among others that are common, so that the piece is packed.
  std::vector<std::uint16_t> numbers = normal_bfloats(400'000);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    numbers[6 * bits + 1] = static_cast<std::uint16_t>(bits);
  }
  EXPECT_GT(expect_to_come_back(numbers), 0U);
}

TEST(Pack, special_floats_come_back) {
  std::vector<std::uint32_t> numbers = normal_floats(100'001);
  const std::vector<std::uint32_t> special{
      0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x7f800000, 0xff800000,
      0x7fc00000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0x00800000, 0xff7fffff};
  std::mt19937 engine(5);
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    numbers[i] = i % 2 == 0 ? special[engine() % special.size()] : engine();
  }
  expect_to_come_back(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = special[i % special.size()];
  EXPECT_GT(expect_to_come_back(numbers), 0U);
}

TEST(Pack, zeros_and_constants_come_back) {
  EXPECT_GT(expect_to_come_back(std::vector<std::uint32_t>(70'001, 0)), 0U);
  EXPECT_GT(expect_to_come_back(std::vector<std::uint32_t>(70'001, 0xffffffff)), 0U);
  EXPECT_GT(expect_to_come_back(std::vector<std::uint16_t>(70'001, 0x8000)), 0U);
  std::vector<std::uint32_t> half = normal_floats(70'001);
  for (std::size_t i = 0; i < half.size(); i += 2) half[i] = 0;
  EXPECT_LT(ratio_of(expect_to_come_back(half), 4 * half.size()), 0.6);
}

TEST(Pack, numbers_that_change_within_a_piece_come_back) {
  // What was looked at beforehand tells nothing about some of them.
  std::vector<std::uint32_t> numbers(200'000, 0x3f800000);
  std::mt19937 engine(3);
  for (std::size_t i = 50'000; i < 60'000; ++i) numbers[i] = engine();
  EXPECT_GT(expect_to_come_back(numbers), 0U);
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (i % (numbers.size() / 1024) != 0) numbers[i] = engine();
  }
  EXPECT_EQ(expect_to_come_back(numbers), 0U);
}

TEST(Pack, random_bits_and_other_types_are_left_alone) {
  std::mt19937 engine(1);
  std::vector<std::uint32_t> numbers(65'536);
  for (auto& each : numbers) each = engine();
  EXPECT_EQ(expect_to_come_back(numbers), 0U);
  Packed out(1000);
  for (const auto type : {ElementType::int32, ElementType::float16, ElementType::float64}) {
    EXPECT_FALSE(can_pack(type));
    EXPECT_EQ(FloatPacker().pack(type, numbers.data(), 800, out.data()), 0U);
  }
  EXPECT_TRUE(can_pack(ElementType::float32) && can_pack(ElementType::bfloat16));
}

TEST(Pack, a_message_that_is_cut_or_meant_for_another_size_is_refused) {
  const auto numbers = normal_floats(10'000);
  const Packed packed = packed_floats(numbers);
  std::vector<std::uint32_t> out(numbers.size());
  FloatPacker packer;
  for (std::size_t size = 0; size < packed.size(); size += size < 100 ? 1 : 997) {
    const Packed cut(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(packer.unpack(cut.data(), cut.size(), out.data(), 40'000), Error) << size;
  }
  EXPECT_THROW(packer.unpack(packed.data(), packed.size(), out.data(), 39'996), Error);
  EXPECT_THROW(packer.unpack(packed.data(), packed.size(), out.data(), 0), Error);
  packer.unpack(packed.data(), packed.size(), out.data(), 40'000);
  EXPECT_EQ(out, numbers);
}

TEST(Pack, broken_messages_do_no_harm) {
  const Packed packed = packed_floats(normal_floats(5'000));
  std::mt19937 engine(11);
  const auto scratch_size = kPackStrips * pack_strip(10'000);
  for (int round = 0; round < 3'000; ++round) {
    Packed broken = packed;
    const std::size_t range = round % 2 == 0 ? 64 : broken.size();
    for (int change = 0; change < 3; ++change) {
      broken[engine() % range] = static_cast<std::uint8_t>(engine());
    }
    for (const PackLoops& loops : all_loops()) {
      std::vector<std::uint8_t> out(20'000), scratch(scratch_size);
      loops.unpack({.in = broken.data(),
                    .in_bytes = broken.size(),
                    .out = out.data(),
                    .out_bytes = out.size(),
                    .scratch = scratch.data()});
    }
  }
}
