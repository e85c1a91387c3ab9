#include "data/slot_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

using lockstep::Dealing;
using lockstep::SlotPlan;
using lockstep::Turns;

namespace {

using Indices = std::vector<std::int64_t>;

// A slot's whole share, batch after batch; checks that batches are as long as they should be.
Indices share(const SlotPlan& plan, int slot, std::int64_t batch_size) {
  Indices all;
  bool ended = false;
  for (std::int64_t step = 0; step < plan.steps(); ++step) {
    for (std::int64_t micro = 0; micro < plan.micro_batches(step); ++micro) {
      const Indices batch = plan.indices(step, slot, micro);
      EXPECT_FALSE(ended && !batch.empty()) << "a batch after a short one";
      ended = std::ssize(batch) < batch_size;
      all.insert(all.end(), batch.begin(), batch.end());
    }
  }
  return all;
}

}  // namespace

TEST(SlotPlan, deals_like_cards_and_repeats_from_the_front) {
  const SlotPlan plan({.batch_size = 2, .slots = 3}, Indices{10, 11, 12, 13, 14, 15, 16});
  EXPECT_EQ(plan.batches_per_slot(), 2);
  EXPECT_EQ(plan.samples(), 9);
  EXPECT_EQ(share(plan, 0, 2), (Indices{10, 13, 16}));
  EXPECT_EQ(share(plan, 1, 2), (Indices{11, 14, 10}));
  EXPECT_EQ(share(plan, 2, 2), (Indices{12, 15, 11}));
}

TEST(SlotPlan, drop_last_leaves_out_short_batches_and_repeated_samples) {
  const SlotPlan plan({.batch_size = 2, .drop_last = true, .slots = 2}, 11);
  EXPECT_EQ(plan.batches_per_slot(), 2);
  EXPECT_EQ(plan.samples(), 8);
  EXPECT_EQ(share(plan, 0, 2), (Indices{0, 2, 4, 6}));
  EXPECT_EQ(share(plan, 1, 2), (Indices{1, 3, 5, 7}));
}

TEST(SlotPlan, fewer_samples_than_slots) {
  const SlotPlan even({.batch_size = 4, .slots = 5}, 2);
  for (int slot = 0; slot < 5; ++slot) EXPECT_EQ(share(even, slot, 4), (Indices{slot % 2}));
  const SlotPlan dropping({.batch_size = 4, .drop_last = true, .slots = 5}, 2);
  EXPECT_EQ(dropping.steps(), 0);
  const SlotPlan exact({.batch_size = 4, .dealing = Dealing::kExact, .slots = 5}, 2);
  EXPECT_EQ(exact.steps(), 1);
  EXPECT_EQ(share(exact, 1, 4), (Indices{1}));
  EXPECT_EQ(share(exact, 4, 4), (Indices{}));
}

TEST(SlotPlan, an_empty_dataset_has_no_steps) {
  for (const Dealing dealing : {Dealing::kEven, Dealing::kExact}) {
    const SlotPlan plan({.batch_size = 4, .dealing = dealing, .slots = 3}, 0);
    EXPECT_EQ(plan.steps(), 0);
    EXPECT_EQ(plan.samples(), 0);
    EXPECT_EQ(SlotPlan({.slots = 3}, std::vector<Indices>{}).steps(), 0);
  }
}

TEST(SlotPlan, the_last_step_takes_the_micro_batches_that_are_left) {
  const SlotPlan plan({.batch_size = 1, .slots = 2, .accumulate = 3}, 14);
  EXPECT_EQ(plan.steps(), 3);
  EXPECT_EQ(plan.micro_batches(0), 3);
  EXPECT_EQ(plan.micro_batches(2), 1);
  EXPECT_EQ(plan.micro_batches(3), 0);
  EXPECT_EQ(plan.indices(2, 1, 0), (Indices{13}));
}

TEST(SlotPlan, exact_dealing_gives_every_sample_once) {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (const int slots : {1, 2, 3, 7}) {
      for (const std::int64_t batch_size : {1, 3, 8}) {
        const SlotPlan plan({.batch_size = batch_size, .dealing = Dealing::kExact, .slots = slots},
                            size);
        Indices all;
        for (int slot = 0; slot < slots; ++slot) {
          const Indices mine = share(plan, slot, batch_size);
          all.insert(all.end(), mine.begin(), mine.end());
        }
        std::ranges::sort(all);
        Indices expected(size);
        for (std::int64_t i = 0; i < size; ++i) expected[i] = i;
        ASSERT_EQ(all, expected) << size << " samples, " << slots << " slots";
        ASSERT_EQ(plan.samples(), size);
      }
    }
  }
}

TEST(SlotPlan, even_dealing_gives_every_slot_as_much_and_counts_it) {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (const int slots : {1, 2, 3, 7}) {
      for (const bool drop_last : {false, true}) {
        const SlotPlan plan({.batch_size = 3, .drop_last = drop_last, .slots = slots}, size);
        std::size_t total = 0;
        for (int slot = 0; slot < slots; ++slot) {
          const Indices mine = share(plan, slot, 3);
          ASSERT_EQ(mine.size(), share(plan, 0, 3).size());
          total += mine.size();
        }
        ASSERT_EQ(static_cast<std::int64_t>(total), plan.samples());
      }
    }
  }
}

TEST(SlotPlan, ready_made_batches_are_dealt_whole) {
  const std::vector<Indices> batches{{4, 5}, {1}, {2, 3, 9}, {7}, {8, 0}};
  const SlotPlan even({.slots = 2}, batches);
  EXPECT_EQ(even.steps(), 3);
  EXPECT_EQ(even.samples(), 11);
  EXPECT_EQ(even.indices(1, 0, 0), batches[2]);
  EXPECT_EQ(even.indices(2, 1, 0), batches[0]);  // again from the front
  const SlotPlan exact({.dealing = Dealing::kExact, .slots = 2}, batches);
  EXPECT_EQ(exact.steps(), 3);
  EXPECT_EQ(exact.samples(), 9);
  EXPECT_EQ(exact.indices(2, 0, 0), batches[4]);
  EXPECT_EQ(exact.indices(2, 1, 0), (Indices{}));
}

TEST(SlotPlan, what_a_batch_holds_does_not_depend_on_what_was_asked_before) {
  const SlotPlan plan({.batch_size = 3, .slots = 4, .accumulate = 2}, 101);
  std::map<std::tuple<std::int64_t, int, std::int64_t>, Indices> forward;
  for (std::int64_t step = 0; step < plan.steps(); ++step) {
    for (int slot = 0; slot < 4; ++slot) {
      for (std::int64_t micro = 0; micro < plan.micro_batches(step); ++micro) {
        forward[{step, slot, micro}] = plan.indices(step, slot, micro);
      }
    }
  }
  std::vector<std::tuple<std::int64_t, int, std::int64_t>> addresses;
  for (const auto& [address, indices] : forward) addresses.push_back(address);
  std::shuffle(addresses.begin(), addresses.end(), std::mt19937(3));
  for (const auto& address : addresses) {
    const auto [step, slot, micro] = address;
    EXPECT_EQ(plan.indices(step, slot, micro), forward[address]);
  }
}

TEST(Turns, go_step_by_step_then_slot_by_slot_then_through_micro_batches) {
  const Turns turns({2, 0}, 2, 5);
  ASSERT_EQ(turns.end(), 10);
  std::vector<std::tuple<std::int64_t, int, std::int64_t, bool>> places;
  for (std::int64_t turn = 0; turn < turns.end(); ++turn) {
    const Turns::Place place = turns.place(turn);
    places.emplace_back(place.step, place.slot, place.micro_batch, place.last_in_step);
  }
  const decltype(places) expected{
      {0, 2, 0, false}, {0, 2, 1, false}, {0, 0, 0, false}, {0, 0, 1, true},  {1, 2, 0, false},
      {1, 2, 1, false}, {1, 0, 0, false}, {1, 0, 1, true},  {2, 2, 0, false}, {2, 0, 0, true}};
  EXPECT_EQ(places, expected);
  EXPECT_EQ(turns.first_turn(1), 4);
  EXPECT_EQ(turns.first_turn(2), 8);
  EXPECT_EQ(turns.first_turn(3), 10);
}
