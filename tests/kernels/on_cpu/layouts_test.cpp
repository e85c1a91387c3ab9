// Where the emulator finds values: in tiles, in lanes, in products.

#include "kernels/wgmma.cuh"

#include <gtest/gtest.h>

#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/numbers.h"

namespace {

using namespace lockstep::kernels;
using on_cpu::Values;

constexpr int kSide = 64, kStep = 16;
constexpr int kSquare = kSide * kTileRow;

struct alignas(1024) Room {
  unsigned char a[kSquare];
  unsigned char b[3 * kSquare];
  Barrier full;
};

void run(const std::function<void()>& kernel) {
  on_cpu::launch({.threads = kGroupThreads, .shared_bytes = sizeof(Room)}, {.seed = 1}, kernel);
}

// By all threads: what one of them loads.
template <class Load>
void wait_for_load(Room& room, int bytes, const Load& load) {
  if (threadIdx.x == 0) {
    room.full.init(1);
    publish_barriers();
    room.full.arrive_and_expect(bytes);
    load();
  }
  __syncthreads();
  room.full.wait(0);
}

TEST(LayoutsOnCpu, TilesAreSwizzledAndZeroBeyondTheMatrix) {
  constexpr int kRows = 10, kColumns = 72;
  Values<Bf16> matrix(kRows * kColumns);
  for (int i = 0; i < kRows * kColumns; ++i) matrix[i] = static_cast<Bf16>(i + 1);
  const CUtensorMap map = on_cpu::map_of(matrix.data(), kRows, kColumns, kColumns, 16);
  run([&] {
    Room& room = shared_memory<Room>();
    constexpr int kFirstRow = 2, kFirstColumn = 64;
    wait_for_load(room, 16 * kTileRow,
                  [&] { load_tile(room.a, map, kFirstColumn, kFirstRow, room.full); });
    if (threadIdx.x != 0) return;
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < kSide; ++column) {
        const int place = column / kPack ^ row % 8;
        Bf16 value;
        std::memcpy(&value, room.a + row * kTileRow + place * 16 + column % kPack * 2, 2);
        const bool is_inside = kFirstRow + row < kRows && kFirstColumn + column < kColumns;
        const int at = (kFirstRow + row) * kColumns + kFirstColumn + column + 1;
        EXPECT_EQ(value, is_inside ? at : 0) << row << ", " << column;
      }
    }
  });
}

TEST(LayoutsOnCpu, StoresGiveBackWhatWasLoadedAndNothingBeyond) {
  constexpr int kRows = 10, kColumns = 72;
  Values<Bf16> matrix = on_cpu::random_bf16(kRows * kColumns, 1), copy(kRows * kColumns, 7);
  const CUtensorMap from = on_cpu::map_of(matrix.data(), kRows, kColumns, kColumns, 16);
  const CUtensorMap to = on_cpu::map_of(copy.data(), kRows - 1, kColumns, kColumns, 16);
  run([&] {
    Room& room = shared_memory<Room>();
    wait_for_load(room, 2 * 16 * kTileRow, [&] {
      load_tile(room.a, from, 0, 0, room.full);
      load_tile(room.b, from, kSide, 0, room.full);
    });
    if (threadIdx.x != 0) return;
    store_tile(to, 0, 0, room.a);
    store_tile(to, kSide, 0, room.b);
    end_store_group();
    wait_for_reads<0>();
  });
  for (int i = 0; i < kRows * kColumns; ++i) {
    EXPECT_EQ(copy[i], i < (kRows - 1) * kColumns ? matrix[i] : 7) << i;
  }
}

TEST(LayoutsOnCpu, LanesShareMatricesAndValues) {
  run([&] {
    Room& room = shared_memory<Room>();
    const unsigned lane = threadIdx.x % kWarp;
    unsigned char* const mine = room.b + threadIdx.x / kWarp * 1024;
    const unsigned address = shared_address(mine) + lane * 16;
    unsigned pairs[4];
    for (unsigned i = 0; i < 4; ++i) pairs[i] = lane * 4 + i;
    store_matrices(address, pairs);
    // Pair lane % 4 of row lane / 4 of each matrix.
    for (unsigned i = 0; i < 4; ++i) {
      unsigned pair;
      std::memcpy(&pair, mine + (i * 8 + lane / 4) * 16 + lane % 4 * 4, 4);
      EXPECT_EQ(pair, lane * 4 + i);
    }
    unsigned again[4];
    load_matrices(address, again);
    for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(again[i], pairs[i]);
    EXPECT_EQ(warp_sum(static_cast<float>(lane)), 31 * 16);
    EXPECT_EQ(__shfl_xor_sync(0xffffffffu, lane, 5), lane ^ 5);
  });
}

// One product of 64 terms in all orientations; `kA` is 0 for rows along the sum, 1 for transposed
// and 2 for registers.
template <int kA, bool kTransposedB, int kSums>
void expect_product() {
  constexpr int kColumns = 2 * kSums;
  Values<Bf16> a = on_cpu::random_bf16(kSide * kSide, 1);
  Values<Bf16> b = on_cpu::random_bf16(kSide * kColumns, 2);
  const CUtensorMap map_a = on_cpu::map_of(a.data(), kSide, kSide, kSide, kSide);
  const CUtensorMap map_b = kTransposedB
                                ? on_cpu::map_of(b.data(), kSide, kColumns, kColumns, kSide)
                                : on_cpu::map_of(b.data(), kColumns, kSide, kSide, kColumns);
  Values<float> out(kSide * kColumns);
  run([&] {
    Room& room = shared_memory<Room>();
    wait_for_load(room, kSquare + kColumns * kTileRow, [&] {
      load_tile(room.a, map_a, 0, 0, room.full);
      for (int i = 0; i < (kTransposedB ? kColumns / kSide : 1); ++i) {
        load_tile(room.b + i * kSquare, map_b, i * kSide, 0, room.full);
      }
    });
    float sums[kSums];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const std::uint64_t whole_a = tile_descriptor(shared_address(room.a), kSquare);
    const std::uint64_t whole_b = tile_descriptor(shared_address(room.b), kSquare);
    begin_products();
    for (int step = 0; step < kSide / kStep; ++step) {
      const std::uint64_t of_b = moved(whole_b, step * kStep * (kTransposedB ? kTileRow : 2));
      if constexpr (kA == 2) {
        const int row = warp * 16 + lane % 16;
        const int place = (step * 2 + lane / 16) ^ (row % 8);
        unsigned pairs[4];
        load_matrices(shared_address(room.a) + static_cast<unsigned>(row * kTileRow + place * 16),
                      pairs);
        multiply<kTransposedB>(sums, pairs, of_b, step > 0);
      } else {
        multiply<kA == 1, kTransposedB>(
            sums, moved(whole_a, step * kStep * (kA == 1 ? kTileRow : 2)), of_b, step > 0);
      }
    }
    end_product_group();
    wait_for_products<0>();
    for (int i = 0; i < kSums; ++i) {
      const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
      out[row * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
    }
  });
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      double exact = 0;
      for (int i = 0; i < kSide; ++i) {
        exact += double{to_float(a[kA == 1 ? i * kSide + row : row * kSide + i])} *
                 to_float(b[kTransposedB ? i * kColumns + column : column * kSide + i]);
      }
      ASSERT_NEAR(out[row * kColumns + column], exact, 1e-4) << row << ", " << column;
    }
  }
}

TEST(LayoutsOnCpu, ProductsOfTilesWhoseRowsRunAlongTheSum) {
  expect_product<0, false, 32>();
  expect_product<0, false, 64>();
  expect_product<0, false, 96>();
}

TEST(LayoutsOnCpu, ProductsOfTransposedTiles) {
  expect_product<0, true, 32>();
  expect_product<0, true, 64>();
  expect_product<0, true, 96>();
  expect_product<1, false, 64>();
  expect_product<1, true, 32>();
  expect_product<1, true, 64>();
}

TEST(LayoutsOnCpu, ProductsOfRegisters) {
  expect_product<2, false, 32>();
  expect_product<2, true, 32>();
  expect_product<2, false, 64>();
  expect_product<2, true, 64>();
}

}  // namespace
