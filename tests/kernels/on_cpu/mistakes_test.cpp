// Shows that the emulator finds mistakes: small kernels that are right but for one thing.

#include "kernels/wgmma.cuh"

#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/numbers.h"

namespace {

using namespace lockstep::kernels;
using on_cpu::Lateness;
using on_cpu::Values;

constexpr int kSide = 64, kStep = 16;
constexpr int kSquare = kSide * kTileRow;
constexpr int kRounds = 4, kSums = 32;

struct alignas(1024) Room {
  unsigned char a[kSquare], b[kSquare];
  Barrier full, empty;
};

// What is wrong with a kernel that adds up products of a few tiles.
struct Mistake {
  bool releases_early = false, reads_early = false, forgets_release = false;
  int bytes = 2 * kSquare;
  unsigned parity = 0;
};

void add_products(const CUtensorMap& a, const CUtensorMap& b, float* out, const Mistake& mistake) {
  Room& room = shared_memory<Room>();
  if (threadIdx.x == 0) {
    room.full.init(1);
    room.empty.init(kGroupThreads / kWarp);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= kGroupThreads) {
    if (threadIdx.x > kGroupThreads) return;
    for (int i = 0; i < kRounds; ++i) {
      room.empty.wait(i % 2 ^ 1);
      room.full.arrive_and_expect(mistake.bytes);
      load_tile(room.a, a, 0, i * kSide, room.full);
      load_tile(room.b, b, 0, i * kSide, room.full);
    }
    return;
  }
  float sums[kSums] = {};
  float* const mine = out + threadIdx.x * kSums;
  for (int i = 0; i < kRounds; ++i) {
    const auto release = [&] {
      if (threadIdx.x % kWarp == 0 && !mistake.forgets_release) room.empty.arrive();
    };
    room.full.wait(static_cast<unsigned>(i) % 2 ^ mistake.parity);
    begin_products();
    for (int step = 0; step < kSide / kStep; ++step) {
      multiply<false, false>(sums, tile_descriptor(shared_address(room.a) + step * 32u, 0),
                             tile_descriptor(shared_address(room.b) + step * 32u, 0), 1);
    }
    end_product_group();
    if (mistake.releases_early) release();
    if (mistake.reads_early) std::copy_n(sums, kSums, mine);
    wait_for_products<0>();
    if (!mistake.releases_early) release();
  }
  if (!mistake.reads_early) std::copy_n(sums, kSums, mine);
}

std::vector<float> run(const Mistake& mistake, const on_cpu::Schedule& schedule) {
  Values<Bf16> a = on_cpu::random_bf16(kRounds * kSquare / 2, 1);
  Values<Bf16> b = on_cpu::random_bf16(kRounds * kSquare / 2, 2);
  const CUtensorMap map_a = on_cpu::map_of(a.data(), kRounds * kSide, kSide, kSide, kSide);
  const CUtensorMap map_b = on_cpu::map_of(b.data(), kRounds * kSide, kSide, kSide, kSide);
  Values<float> out(kGroupThreads * kSums);
  on_cpu::launch({.threads = 2 * kGroupThreads, .shared_bytes = sizeof(Room)}, schedule,
                 [&] { add_products(map_a, map_b, out.data(), mistake); });
  return out.copy();
}

constexpr on_cpu::Schedule kEarly{1, Lateness::early}, kLate{1, Lateness::late};

std::string failure_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const on_cpu::Failure& failure) {
    return failure.what();
  }
  return "none";
}
std::string failure_of(const Mistake& mistake, const on_cpu::Schedule& schedule) {
  return failure_of([&] { run(mistake, schedule); });
}
// Of a kernel of two warps that is run late.
std::string failure_of_warps(const std::function<void(Room&)>& kernel) {
  return failure_of([&] {
    on_cpu::launch({.threads = 2 * kWarp, .shared_bytes = sizeof(Room)}, kLate,
                   [&] { kernel(shared_memory<Room>()); });
  });
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas no: " << part;
}

TEST(MistakesOnCpu, WithoutOneAllSchedulesGiveTheSameBits) {
  const std::vector<float> bits = run({}, kEarly);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(run({}, {seed, Lateness::early}), bits);
    EXPECT_EQ(run({}, {seed, Lateness::late}), bits);
    EXPECT_EQ(run({}, {seed, Lateness::random}), bits);
  }
}

TEST(MistakesOnCpu, ATileReleasedBeforeItsProductIsWaitedFor) {
  const std::vector<float> right = run({}, kEarly);
  EXPECT_EQ(run({.releases_early = true}, kEarly), right);  // as on most days on the device
  EXPECT_NE(run({.releases_early = true}, kLate), right);
}

TEST(MistakesOnCpu, SumsReadBeforeTheWait) {
  const std::vector<float> right = run({}, kEarly);
  EXPECT_EQ(run({.reads_early = true}, kEarly), right);
  EXPECT_NE(run({.reads_early = true}, kLate), right);
}

TEST(MistakesOnCpu, AMissingArrival) {
  for (const auto& schedule : {kEarly, kLate}) {
    const std::string failure = failure_of({.forgets_release = true}, schedule);
    expect_has(failure, "deadlock");
    expect_has(failure, "warp 4, threads 128 to 128: Barrier::wait() of parity 0");
    expect_has(failure, "whose phase 0 lacks 4 of 4 arrivals and 0 bytes");
    expect_has(failure, "warp 0, threads 0 to 31: Barrier::wait() of parity 1");
    expect_has(failure, "warp 5, threads 160 to 191: ended");
  }
}

TEST(MistakesOnCpu, AWrongNumberOfBytes) {
  expect_has(failure_of({.bytes = 2 * kSquare + 16}, kLate), "0 of 1 arrivals and 16 bytes");
  expect_has(failure_of({.bytes = kSquare}, kLate), "fewer bytes were expected than loaded");
  expect_has(failure_of({.bytes = kSquare + 16}, kLate), "8176 bytes more than phase 0 expects");
}

TEST(MistakesOnCpu, AWrongParity) {
  EXPECT_NE(failure_of({.parity = 1}, kLate), "none");
}

TEST(MistakesOnCpu, BarriersThatAreNone) {
  expect_has(failure_of_warps([](Room& room) { room.full.arrive(); }),
             "where no barrier was initialized");
  expect_has(failure_of_warps([](Room& room) {
               if (threadIdx.x == 0) room.full.init(1);
               __syncthreads();
               room.full.state = 0;
               room.full.wait(0);
             }),
             "or it was overwritten");
}

TEST(MistakesOnCpu, ABarrierInitializedWhileThreadsWait) {
  expect_has(failure_of_warps([](Room& room) {
               if (threadIdx.x == 0) room.full.init(1);
               __syncthreads();
               if (threadIdx.x >= kWarp) room.full.wait(0);
               for (int i = 0; i < 100; ++i) __syncwarp();
               if (threadIdx.x == 0) room.full.init(1);
             }),
             "where threads wait");
}

TEST(MistakesOnCpu, APhaseThatEndsTwiceBeforeItIsSeen) {
  std::string failure = "none";
  for (std::uint64_t seed = 0; seed < 20 && failure == "none"; ++seed) {
    failure = failure_of([&] {
      on_cpu::launch({.threads = 2 * kWarp, .shared_bytes = sizeof(Room)}, {seed, Lateness::random},
                     [] {
                       Room& room = shared_memory<Room>();
                       if (threadIdx.x == 0) room.full.init(1);
                       __syncthreads();
                       if (threadIdx.x == 0) {
                         for (int i = 0; i < 4; ++i) room.full.arrive();
                       } else if (threadIdx.x >= kWarp) {
                         for (unsigned i = 0; i < 4; ++i) room.full.wait(i % 2);
                       }
                     });
    });
  }
  EXPECT_NE(failure, "none");
}

TEST(MistakesOnCpu, ThreadsOfAWarpThatDoDifferentThings) {
  expect_has(
      failure_of_warps([](Room&) { threadIdx.x % 2 == 0 ? __syncwarp() : void(warp_sum(1.0f)); }),
      "while others of its warp are in");
  expect_has(failure_of_warps([](Room&) {
               if (threadIdx.x != 5) __syncwarp();
             }),
             "__syncwarp()");
}

TEST(MistakesOnCpu, ABarrierForOtherNumbersOfThreads) {
  expect_has(failure_of_warps([](Room&) { sync_threads(1, threadIdx.x < kWarp ? 64 : 32); }),
             "sync_threads() number 1 of");
  expect_has(failure_of_warps([](Room&) {
               if (threadIdx.x < kWarp) sync_threads(1, 64);
             }),
             "sync_threads() number 1, where 32 of 64 threads are");
}

TEST(MistakesOnCpu, AddressesThatDoNotFit) {
  expect_has(failure_of_warps([](Room&) {
               unsigned pairs[4];
               load_matrices(0, pairs);
             }),
             "outside of the block's");
  expect_has(failure_of_warps([](Room& room) {
               unsigned pairs[4];
               load_matrices(shared_address(room.a) + 8, pairs);
             }),
             "no multiple of 16");
  expect_has(failure_of_warps([](Room&) {
               const int local = 0;
               shared_address(&local);
             }),
             "not in the block's shared memory");
}

// Of a tile of a matrix of 64 x 64.
std::string failure_of_copy(const std::function<void(Room&, const CUtensorMap&)>& kernel) {
  Values<Bf16> matrix = on_cpu::random_bf16(kSide * kSide, 1);
  const CUtensorMap map = on_cpu::map_of(matrix.data(), kSide, kSide, kSide, kSide);
  return failure_of_warps([&](Room& room) {
    if (threadIdx.x == 0) {
      room.full.init(1);
      publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < kWarp) kernel(room, map);
  });
}

TEST(MistakesOnCpu, TilesThatDoNotFit) {
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               load_tile(room.a + 128, map, 0, 0, room.full);
             }),
             "no multiple of 1024");
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               load_tile(room.b + 2048, map, 0, 0, room.full);
             }),
             "outside of the block's");
  expect_has(failure_of_copy([](Room& room, const CUtensorMap&) {
               load_bytes(room.a, room.b + 8, 16, room.full);
             }),
             "multiples of 16");
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               load_tile_to(2, room.a, map, 0, 0, room.full);
             }),
             "of a cluster of 1");
}

TEST(MistakesOnCpu, CopiesThatNobodyWaitsFor) {
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               if (threadIdx.x == 0) store_tile(map, 0, 0, room.a), end_store_group();
             }),
             "wait_for_reads() is missing");
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               if (threadIdx.x != 0) return;
               room.full.arrive_and_expect(kSquare);
               load_tile(room.a, map, 0, 0, room.full);
             }),
             "more bytes");
}

TEST(MistakesOnCpu, WhatWasNotPublishedToCopies) {
  expect_has(failure_of_copy([](Room& room, const CUtensorMap& map) {
               store_matrices(shared_address(room.a) + threadIdx.x * 16, {1, 2, 3, 4});
               __syncwarp();
               if (threadIdx.x == 0) store_tile(map, 0, 0, room.a);
             }),
             "was not published to copies");
}

TEST(MistakesOnCpu, ProductsWithoutAFenceOrAWait) {
  const auto failure_of_group =
      [](const std::function<void(float(&)[kSums], std::uint64_t)>& what) {
        return failure_of([&] {
          on_cpu::launch({.threads = kGroupThreads, .shared_bytes = sizeof(Room)}, kLate, [&] {
            float sums[kSums] = {};
            what(sums, tile_descriptor(shared_address(shared_memory<Room>().a), 0));
          });
        });
      };
  expect_has(failure_of_group([](float(&sums)[kSums], std::uint64_t tile) {
               multiply<false, false>(sums, tile, tile, 0);
             }),
             "without begin_products()");
  expect_has(failure_of_group([](float(&sums)[kSums], std::uint64_t tile) {
               begin_products();
               multiply<false, false>(sums, tile, tile, 0);
               end_product_group();
             }),
             "without a wait for its products");
  expect_has(failure_of_group([](float(&sums)[kSums], std::uint64_t tile) {
               begin_products();
               multiply<false, false>(sums, moved(tile, threadIdx.x < 32 ? 0 : 32), tile, 0);
               end_product_group();
               wait_for_products<0>();
             }),
             "warps of a group ask for different products");
  expect_has(failure_of_group([](float(&sums)[kSums], std::uint64_t tile) {
               begin_products();
               multiply<false, false>(sums, tile, tile, static_cast<int>(threadIdx.x % 2));
             }),
             "threads of a warp ask for different products");
  expect_has(failure_of_group([](float(&sums)[kSums], std::uint64_t tile) {
               if (threadIdx.x / kWarp == 2) return;
               begin_products();
               multiply<false, false>(sums, tile, tile, 0);
               end_product_group();
               wait_for_products<0>();
             }),
             "ended");
}

}  // namespace
