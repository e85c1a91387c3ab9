#include "lockstep/distributed_sampler.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::DistributedSampler;
using lockstep::InvalidArgument;

namespace {

// Every rank's share of one epoch, laid end to end and sorted.
std::vector<std::int64_t> all_shares(std::int64_t dataset_size, int world_size, bool drop_last) {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto share = DistributedSampler({.dataset_size = dataset_size,
                                           .world_size = world_size,
                                           .rank = rank,
                                           .drop_last = drop_last})
                           .indices();
    all.insert(all.end(), share.begin(), share.end());
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace

TEST(DistributedSampler, ranks_partition_a_dataset_that_divides_evenly) {
  EXPECT_EQ(all_shares(6, 3, /*drop_last=*/false), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(DistributedSampler, padding_repeats_samples_until_shares_are_equal) {
  EXPECT_EQ(all_shares(5, 3, /*drop_last=*/false).size(), 6u);
}

TEST(DistributedSampler, padding_wraps_more_than_once_when_ranks_outnumber_samples) {
  EXPECT_EQ(all_shares(1, 4, /*drop_last=*/false), (std::vector<std::int64_t>{0, 0, 0, 0}));
}

TEST(DistributedSampler, drop_last_leaves_the_remainder_out) {
  EXPECT_EQ(all_shares(5, 3, /*drop_last=*/true).size(), 3u);
}

TEST(DistributedSampler, a_rank_outside_the_world_is_refused) {
  EXPECT_THROW(DistributedSampler({.dataset_size = 8, .world_size = 2, .rank = 2}),
               InvalidArgument);
}

TEST(DistributedSampler, a_world_without_ranks_is_refused) {
  EXPECT_THROW(DistributedSampler({.dataset_size = 8, .world_size = 0}), InvalidArgument);
  EXPECT_THROW(DistributedSampler({.dataset_size = 8, .world_size = -2}), InvalidArgument);
}

TEST(DistributedSampler, an_empty_dataset_gives_empty_shares) {
  EXPECT_TRUE(all_shares(0, 3, /*drop_last=*/false).empty());
  EXPECT_TRUE(all_shares(0, 3, /*drop_last=*/true).empty());
}

TEST(DistributedSampler, drop_last_with_fewer_samples_than_ranks_gives_empty_shares) {
  EXPECT_TRUE(all_shares(2, 3, /*drop_last=*/true).empty());
}

TEST(DistributedSampler, the_share_of_a_huge_dataset_is_counted_without_overflow) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(DistributedSampler({.dataset_size = huge, .world_size = 2}).size(), huge / 2 + 1);
  EXPECT_THROW(DistributedSampler({.dataset_size = huge, .world_size = 2}).indices(),
               InvalidArgument);
}
