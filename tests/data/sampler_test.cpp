#include "lockstep/sampler.h"

#include <algorithm>
#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include "lockstep/distributed_sampler.h"
#include "lockstep/error.h"

using lockstep::DistributedSampler;
using lockstep::InvalidArgument;
using lockstep::RandomSampler;
using lockstep::Sampler;
using lockstep::SequentialSampler;
using lockstep::SubsetSampler;

namespace {

using Indices = std::vector<std::int64_t>;

Indices sorted(Indices indices) {
  std::ranges::sort(indices);
  return indices;
}

}  // namespace

TEST(SequentialSampler, reads_in_order_in_every_epoch) {
  SequentialSampler sampler(4);
  sampler.set_epoch(7);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_EQ(sampler.indices(), (Indices{0, 1, 2, 3}));
}

TEST(SequentialSampler, an_empty_dataset_gives_nothing) {
  EXPECT_TRUE(SequentialSampler(0).indices().empty());
  EXPECT_THROW(SequentialSampler(-1), InvalidArgument);
}

TEST(RandomSampler, reads_every_sample_once) {
  EXPECT_EQ(sorted(RandomSampler({.dataset_size = 5}).indices()), (Indices{0, 1, 2, 3, 4}));
}

TEST(RandomSampler, the_order_depends_on_seed_and_epoch_alone) {
  RandomSampler first({.dataset_size = 100, .seed = 3});
  RandomSampler second({.dataset_size = 100, .seed = 3});
  first.indices();
  EXPECT_EQ(first.indices(), second.indices());
  first.set_epoch(1);
  EXPECT_NE(first.indices(), second.indices());
  EXPECT_NE(second.indices(), RandomSampler({.dataset_size = 100, .seed = 4}).indices());
}

TEST(RandomSampler, more_samples_than_the_dataset_has_are_whole_permutations_and_a_part) {
  const Indices order = RandomSampler({.dataset_size = 3, .num_samples = 7}).indices();
  ASSERT_EQ(order.size(), 7u);
  EXPECT_EQ(sorted({order.begin(), order.begin() + 3}), (Indices{0, 1, 2}));
  EXPECT_EQ(sorted({order.begin() + 3, order.begin() + 6}), (Indices{0, 1, 2}));
}

TEST(RandomSampler, replacement_draws_each_sample_from_the_whole_dataset) {
  const Indices order =
      RandomSampler({.dataset_size = 4, .replacement = true, .num_samples = 1000}).indices();
  EXPECT_EQ(order.size(), 1000u);
  for (std::int64_t sample = 0; sample < 4; ++sample) {
    EXPECT_GT(std::ranges::count(order, sample), 150) << "sample " << sample;
  }
}

TEST(RandomSampler, nothing_to_draw_is_refused) {
  EXPECT_THROW(RandomSampler({.dataset_size = 0}), InvalidArgument);
  EXPECT_THROW(RandomSampler({.dataset_size = -3}), InvalidArgument);
  EXPECT_THROW(RandomSampler({.dataset_size = 3, .num_samples = 0}), InvalidArgument);
}

TEST(RandomSampler, a_dataset_that_no_memory_holds_is_refused_by_name) {
  const RandomSampler sampler(
      {.dataset_size = std::numeric_limits<std::int64_t>::max(), .num_samples = 1});
  EXPECT_EQ(sampler.size(), 1);
  EXPECT_THROW(sampler.indices(), InvalidArgument);
}

TEST(SubsetSampler, reads_only_the_samples_given) {
  const Indices subset{9, 4, 4, 1};
  EXPECT_EQ(SubsetSampler(subset).indices(), subset);
  EXPECT_EQ(sorted(SubsetSampler(subset, {.shuffle = true}).indices()), (Indices{1, 4, 4, 9}));
  EXPECT_TRUE(SubsetSampler({}, {.shuffle = true}).indices().empty());
}

TEST(SubsetSampler, shuffling_changes_with_the_epoch) {
  Indices subset(50);
  for (int i = 0; i < 50; ++i) subset[i] = 2 * i;
  SubsetSampler sampler(subset, {.shuffle = true});
  const Indices before = sampler.indices();
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), before);
}

TEST(SubsetSampler, a_negative_index_is_refused) {
  EXPECT_THROW(SubsetSampler({0, -1}), InvalidArgument);
}

TEST(Sampler, all_samplers_serve_one_loader) {
  std::vector<std::unique_ptr<Sampler>> samplers;
  samplers.push_back(std::make_unique<SequentialSampler>(8));
  samplers.push_back(
      std::make_unique<RandomSampler>(lockstep::RandomSamplerOptions{.dataset_size = 8}));
  samplers.push_back(std::make_unique<SubsetSampler>(Indices{1, 2}));
  samplers.push_back(std::make_unique<DistributedSampler>(
      lockstep::DistributedSamplerOptions{.dataset_size = 8, .world_size = 2, .rank = 1}));
  for (const auto& sampler : samplers) {
    sampler->set_epoch(2);
    EXPECT_EQ(sampler->epoch(), 2);
    EXPECT_EQ(static_cast<std::int64_t>(sampler->indices().size()), sampler->size());
  }
}
