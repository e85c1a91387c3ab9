#include "shard/flat_layout.h"

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

}  // namespace

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
