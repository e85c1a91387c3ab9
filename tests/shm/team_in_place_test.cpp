#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "shm/reduce.h"
#include "shm/shared_block.h"
#include "shm/team.h"

using namespace lockstep;

namespace {

// A rank whose tensors can lie in a block that all have mapped, each at an address of its own.
struct BlockRank {
  std::shared_ptr<SharedBlocks> blocks = std::make_shared<SharedBlocks>();
  std::shared_ptr<const SharedBlock> block;
  std::unique_ptr<ShmTeam> team;
};

std::vector<BlockRank> make_block_ranks(int size, std::size_t bytes) {
  const auto segment =
      std::make_shared<const SharedSegment>(SharedSegment::create(ShmTeam::bytes_needed(size)));
  const SharedBlock::Shape shape{.ranks = size, .bytes = bytes};
  SharedSegment created = SharedSegment::create(SharedBlock::bytes_needed(shape));
  const UniqueFd descriptor = created.take_descriptor();
  std::vector<BlockRank> ranks(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    BlockRank& each = ranks[static_cast<std::size_t>(rank)];
    each.block = std::make_shared<const SharedBlock>(
        SharedSegment::open(getpid(), descriptor.get(), SharedBlock::bytes_needed(shape)), shape,
        rank, 4711);
    each.blocks->add(each.block);
    each.team =
        std::make_unique<ShmTeam>(segment, ShmTeam::Options{.rank = rank,
                                                            .size = size,
                                                            .timeout = std::chrono::seconds(30),
                                                            .peer_ended = nullptr,
                                                            .blocks = each.blocks});
  }
  return ranks;
}

std::vector<std::byte> bytes_of_rank(std::size_t bytes, int rank) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    // Any such bits are a finite number of every type.
    data[i] = static_cast<std::byte>((i * 7 + i / 31 + static_cast<std::size_t>(rank) * 13) & 0x3f);
  }
  return data;
}

struct InPlaceCase {
  ReduceSpec spec;
  std::int64_t count = 0;
  std::size_t offset = 0;  // in the block
  int elsewhere = -1;      // this rank's data is not in the block
  int displaced = -1;      // this rank's is at another place of it
};

void expect_sum_in_block(int size, const InPlaceCase& tried) {
  const std::size_t bytes = static_cast<std::size_t>(tried.count) * bytes_of(tried.spec.type);
  auto ranks = make_block_ranks(size, bytes + 4096);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const void*> parts;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(bytes_of_rank(bytes, rank));
  for (const auto& input : inputs) parts.push_back(input.data());
  std::vector<std::byte> expected(bytes);
  reduce_elements(tried.spec, parts, tried.count, expected.data());

  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto& own = inputs[static_cast<std::size_t>(rank)];
      BlockRank& each = ranks[static_cast<std::size_t>(rank)];
      std::vector<std::byte> other = own;
      std::byte* data = each.block->own() + tried.offset + (rank == tried.displaced ? 64 : 0);
      if (rank == tried.elsewhere) data = other.data();
      for (int round = 0; round < 3; ++round) {
        std::memcpy(data, own.data(), bytes);
        each.team->all_reduce(data, tried.count, tried.spec);
        EXPECT_EQ(std::memcmp(data, expected.data(), bytes), 0)
            << size << " ranks, " << name_of(tried.spec.type) << " x " << tried.count;
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

TEST(TeamInPlace, reduces_in_rank_order_what_lies_side_by_side) {
  for (int size = 1; size <= 5; ++size) {
    for (const auto type : {ElementType::float32, ElementType::bfloat16, ElementType::int64}) {
      for (const std::int64_t count : {70'000, 131'072, 262'147}) {
        expect_sum_in_block(size, {.spec = {.type = type}, .count = count});
      }
    }
  }
}

TEST(TeamInPlace, pieces_of_a_block_and_other_operations) {
  const ReduceSpec mean{.type = ElementType::float64, .divisor = 3};
  expect_sum_in_block(3, {.spec = mean, .count = 50'001, .offset = 128});
  const ReduceSpec largest{.type = ElementType::float16, .op = ReduceOperator::max};
  expect_sum_in_block(4, {.spec = largest, .count = 200'001, .offset = 2});
}

TEST(TeamInPlace, one_rank_that_has_its_data_elsewhere_makes_all_copy) {
  for (const std::int64_t count : {70'000, 262'147}) {
    expect_sum_in_block(3, {.spec = {}, .count = count, .elsewhere = 1});
    expect_sum_in_block(3, {.spec = {}, .count = count, .displaced = 2});
  }
}

// On a machine with several sockets the kernel takes memory of the one whose process reserves it.
TEST(SharedSegment, each_process_reserves_its_own_range) {
  const auto reserved = [](const UniqueFd& descriptor) {
    struct stat status {};
    EXPECT_EQ(fstat(descriptor.get(), &status), 0);
    return status.st_blocks * 512;
  };
  SharedSegment first = SharedSegment::create(1 << 20, {.begin = 0, .bytes = 8192});
  const UniqueFd descriptor = first.take_descriptor();
  EXPECT_EQ(reserved(descriptor), 8192);
  const SharedSegment second =
      SharedSegment::open(getpid(), descriptor.get(), 1 << 20, {.begin = 65'536, .bytes = 4096});
  EXPECT_EQ(reserved(descriptor), 8192 + 4096);
  // Between them the ranks of a team, and of a block, reserve all of it.
  for (int size = 1; size <= 5; ++size) {
    const SharedBlock::Shape shape{.ranks = size, .bytes = 100'000};
    std::size_t of_team = 0, of_block = 0;
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(ShmTeam::own_range(rank, size).begin, of_team);
      EXPECT_EQ(SharedBlock::own_range(shape, rank).begin, of_block);
      of_team += ShmTeam::own_range(rank, size).bytes;
      of_block += SharedBlock::own_range(shape, rank).bytes;
    }
    EXPECT_EQ(of_team, ShmTeam::bytes_needed(size));
    EXPECT_EQ(of_block, SharedBlock::bytes_needed(shape));
  }
}

TEST(SharedBlocks, find_what_lies_wholly_in_a_block) {
  auto ranks = make_block_ranks(2, 10'000);
  const BlockRank& first = ranks[0];
  const auto place = first.blocks->find(first.block->own() + 100, 9'900);
  EXPECT_EQ(place.block, first.block);
  EXPECT_EQ(place.offset, 100u);
  EXPECT_EQ(first.blocks->find(first.block->own() + 101, 9'900).block, nullptr);
  EXPECT_EQ(first.blocks->find(first.block->part(1), 8).block, nullptr);
  first.blocks->remove(4711);
  EXPECT_EQ(first.blocks->find(first.block->own(), 1).block, nullptr);
}
