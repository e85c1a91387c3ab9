#include "launch/straggler_watch.h"

#include <gtest/gtest.h>

using namespace lockstep;
using namespace std::chrono_literals;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// Ranks that make a step of their own times together, heard of after each second.
class StragglerWatchTest : public ::testing::Test {
 protected:
  struct Own {
    milliseconds data, compute;
  };

  // All ranks do steps for so long; the slowest makes the others wait.
  std::vector<StragglerWatch::Finding> train(const std::vector<Own>& ranks, milliseconds time) {
    std::vector<StragglerWatch::Finding> all;
    milliseconds longest{0};
    for (const Own& own : ranks) longest = std::max(longest, own.data + own.compute);
    const milliseconds step = longest + 20ms;
    for (milliseconds end = clock_ + time; clock_ < end;) {
      clock_ += step;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        StepWork& work = work_[static_cast<int>(rank)];
        work.steps += 1;
        work.data += ranks[rank].data;
        work.compute += ranks[rank].compute;
        work.waiting += step - ranks[rank].data - ranks[rank].compute;
      }
      if (clock_ - heard_ < 1s) continue;
      heard_ = clock_;
      for (const auto& [rank, work] : work_) watch_.on_heartbeat(rank, {.work = work});
      for (const auto& finding : watch_.look(clock_)) all.push_back(finding);
    }
    return all;
  }

  static constexpr Own kUsual{10ms, 100ms};

  StragglerWatch watch_{30s};
  std::map<int, StepWork> work_;
  milliseconds clock_{5000}, heard_{0};
};

}  // namespace

TEST_F(StragglerWatchTest, names_the_slow_rank_once_with_what_takes_it_so_long) {
  const auto found = train({kUsual, kUsual, {140ms, 100ms}, kUsual}, 300s);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(StragglerWatch::in_words(found[0]),
            "rank 2 is slow: 2.2 x the others, in data loading (140 ms of 240 ms per step)");
  EXPECT_TRUE(found[0].in_data);
}

TEST_F(StragglerWatchTest, computing_is_told_apart_from_loading) {
  const auto found = train({{1ms, 9ms}, {1ms, 5ms}}, 300s);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(StragglerWatch::in_words(found[0]),
            "rank 0 is slow: 1.7 x the others, in computing (9.0 ms of 10 ms per step)");
}

TEST_F(StragglerWatchTest, ranks_that_are_alike_or_nearly_are_not_named) {
  EXPECT_TRUE(train({kUsual, {10ms, 140ms}, {60ms, 100ms}, kUsual}, 600s).empty());
}

TEST_F(StragglerWatchTest, what_passes_is_not_told) {
  for (int turn = 0; turn < 20; ++turn) {
    EXPECT_TRUE(train({kUsual, {300ms, 100ms}}, 18s).empty());
    EXPECT_TRUE(train({kUsual, kUsual}, 15s).empty());
  }
}

TEST_F(StragglerWatchTest, not_before_thirty_seconds_and_twenty_steps) {
  EXPECT_TRUE(train({kUsual, {300ms, 100ms}}, 30s).empty());
  watch_ = StragglerWatch(30s);
  EXPECT_TRUE(train({kUsual, {10ms, 9000ms}}, 20 * 9030ms).empty());
  EXPECT_EQ(train({kUsual, {10ms, 9000ms}}, 60s).size(), 1u);
}

TEST_F(StragglerWatchTest, a_difference_that_hardly_costs_anything_is_not_told) {
  // The step takes 20 ms more than the slowest rank, for communication.
  EXPECT_TRUE(train({{0ms, 1ms}, {0ms, 2ms}}, 300s).empty());
}

TEST_F(StragglerWatchTest, a_new_process_begins_anew_and_may_be_named_again) {
  EXPECT_EQ(train({kUsual, {300ms, 100ms}}, 60s).size(), 1u);
  watch_.forget(1);
  work_[1] = {};
  EXPECT_TRUE(train({kUsual, {300ms, 100ms}}, 25s).empty());
  EXPECT_EQ(train({kUsual, {300ms, 100ms}}, 60s).size(), 1u);
}

TEST_F(StragglerWatchTest, one_rank_is_never_slow_and_zero_turns_it_off) {
  EXPECT_TRUE(train({{300ms, 100ms}}, 300s).empty());
  watch_ = StragglerWatch(0s);
  EXPECT_TRUE(train({kUsual, {300ms, 100ms}}, 300s).empty());
}
