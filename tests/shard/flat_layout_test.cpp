#include "shard/flat_layout.h"

#include <algorithm>

#include <gtest/gtest.h>

using lockstep::FlatLayout;

namespace {

// Every element of every parameter belongs to exactly one rank, at the place that its offset says.
void expect_whole(const std::vector<std::int64_t>& sizes, int ranks) {
  const FlatLayout layout(sizes, ranks);
  EXPECT_EQ(layout.length(), layout.shard_length() * ranks);
  EXPECT_EQ(layout.shard_length() % FlatLayout::kAlignment, 0);
  std::vector<std::int64_t> reached(sizes.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t end = 0;
    for (const FlatLayout::Piece& piece : layout.pieces(rank)) {
      EXPECT_GT(piece.count, 0);
      EXPECT_EQ(piece.begin, reached[piece.parameter]) << "in order, without holes";
      EXPECT_EQ(piece.begin % FlatLayout::kAlignment, 0);
      EXPECT_GE(piece.at, end);
      EXPECT_EQ(layout.offset(piece.parameter) + piece.begin,
                rank * layout.shard_length() + piece.at);
      reached[piece.parameter] += piece.count;
      end = piece.at + piece.count;
    }
    EXPECT_LE(end, layout.shard_length());
  }
  EXPECT_EQ(reached, sizes);

  std::int64_t unused = layout.length();
  for (const std::int64_t size : sizes) unused -= size;
  for (const FlatLayout::Gap& gap : layout.gaps()) unused -= gap.end - gap.begin;
  EXPECT_EQ(unused, 0);
}

// Every element has one place in the order of the reduction, and the shares of a part's holders, in
// the order of copies, are the part.
void expect_shares(const std::vector<std::int64_t>& sizes, int ranks, int replicas) {
  const FlatLayout layout(sizes, ranks, replicas);
  const std::int64_t share = layout.share_length();
  const int parts = ranks / replicas;
  ASSERT_EQ(layout.shard_length(), share * replicas);
  ASSERT_EQ(layout.length(), share * ranks);
  std::vector<std::int64_t> place(layout.length(), -1);
  for (std::int64_t begin = 0; begin < layout.length(); begin += 100) {
    const std::int64_t end = std::min(begin + 100, layout.length());
    std::int64_t next = begin;
    for (const FlatLayout::Stretch& each : layout.in_reduction(begin, end)) {
      ASSERT_EQ(each.begin, next) << "in order, without holes";
      for (std::int64_t i = 0; i < each.count; ++i) place[each.begin + i] = each.at + i;
      next += each.count;
    }
    ASSERT_EQ(next, end);
  }
  for (int part = 0; part < parts; ++part) {
    for (int copy = 0; copy < replicas; ++copy) {
      const int rank = copy * parts + part;
      const std::int64_t in_buffer = part * layout.shard_length() + copy * share;
      for (std::int64_t i = 0; i < share; ++i) ASSERT_EQ(place[in_buffer + i], rank * share + i);
    }
  }
}

}  // namespace

TEST(FlatLayout, ranks_reduce_shares_of_which_holders_make_their_part) {
  for (const auto& [ranks, replicas] : {std::pair(4, 2), std::pair(6, 2), std::pair(6, 3),
                                        std::pair(3, 3), std::pair(5, 1), std::pair(1, 1)}) {
    expect_shares({1}, ranks, replicas);
    expect_shares({7, 1000, 63, 65, 1, 129}, ranks, replicas);
    expect_shares({5, 0, 10000, 3}, ranks, replicas);
  }
}

TEST(FlatLayout, every_element_has_one_owner) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    expect_whole({1}, ranks);
    expect_whole({64, 64, 64}, ranks);
    expect_whole({7, 1000, 63, 65, 1, 129}, ranks);
    expect_whole({5, 0, 100000, 3}, ranks);
  }
}

TEST(FlatLayout, padding_is_small) {
  const FlatLayout layout({1000003, 17}, 4);
  EXPECT_LT(layout.length(), 1000003 + 17 + 64 * (2 + 4));
}
