#include "launch/hang_watch.h"

#include <gtest/gtest.h>

using namespace lockstep;
using namespace std::chrono_literals;
using std::chrono::milliseconds;

namespace {

// Ranks whose steps take a second, heard every second.
class HangWatchTest : public ::testing::Test {
 protected:
  HangWatch watch_{60s};

  WorkerHeartbeat at(std::int64_t step, const char* phase, milliseconds alone) {
    return {.step = step,
            .phase = phase,
            .age = alone,
            .alone = alone,
            .longest_alone = longest_,
            .visits = visits_};
  }
  WorkerHeartbeat waiting(std::int64_t step, const char* phase) {
    WorkerHeartbeat beat = at(step, phase, 0ms);
    beat.waits_for = "all_reduce";
    return beat;
  }

  // The worker stays where it is; returns after how many seconds it was found.
  std::optional<int> found_after(int rank, std::int64_t step, const char* phase, int seconds) {
    for (int second = 1; second <= seconds; ++second) {
      watch_.on_heartbeat(rank, at(step, phase, std::chrono::seconds(second)));
      if (watch_.judge(rank)) return second;
    }
    return std::nullopt;
  }

  std::int64_t visits_ = 100;      // of the phases
  milliseconds longest_ = 1000ms;  // in the phases
};

}  // namespace

TEST_F(HangWatchTest, finds_who_computes_on_and_not_those_who_wait_for_it) {
  for (int second = 1; second <= 61; ++second) {
    watch_.on_heartbeat(0, waiting(17, "train"));
    watch_.on_heartbeat(1, at(17, "train", std::chrono::seconds(second)));
    watch_.on_heartbeat(2, waiting(17, "train"));
    EXPECT_EQ(watch_.judge(1).has_value(), second > 60) << second;
  }
  EXPECT_EQ(watch_.judge(0), std::nullopt);
  EXPECT_EQ(watch_.judge(2), std::nullopt);
  EXPECT_EQ(watch_.judge(1),
            (HangWatch::Finding{.step = 17, .phase = "train", .alone = 61s, .limit = 60s}));
}

TEST_F(HangWatchTest, long_steps_are_given_ten_times_the_longest_that_any_rank_had) {
  longest_ = 20s;
  watch_.on_heartbeat(0, waiting(17, "train"));
  longest_ = 1s;
  EXPECT_EQ(found_after(1, 17, "train", 300), 201);
}

TEST_F(HangWatchTest, the_first_steps_may_take_any_time) {
  visits_ = 2;
  EXPECT_EQ(found_after(0, 2, "train", 5000), std::nullopt);
  visits_ = 3;
  EXPECT_EQ(found_after(0, 3, "train", 5000), 61);
}

TEST_F(HangWatchTest, what_a_rank_learnt_holds_for_the_process_that_replaces_it) {
  longest_ = 20s;
  watch_.on_heartbeat(1, waiting(17, "train"));
  watch_.forget(1);
  visits_ = 0;
  longest_ = 0ms;
  EXPECT_EQ(found_after(1, 17, "train", 300), 201);
}

TEST_F(HangWatchTest, other_phases_have_ten_times_as_long_and_learn_for_themselves) {
  longest_ = 0ms;
  EXPECT_EQ(found_after(0, 9, "report", 5000), 601);
  longest_ = 100s;
  EXPECT_EQ(found_after(1, 9, "evaluate", 5000), 1001);
  visits_ = 1;
  EXPECT_EQ(found_after(1, 9, "finish", 50000), std::nullopt);
}

TEST_F(HangWatchTest, progress_of_any_kind_begins_anew) {
  EXPECT_EQ(found_after(0, 9, "train", 59), std::nullopt);
  EXPECT_EQ(found_after(0, 10, "train", 59), std::nullopt);
  EXPECT_EQ(found_after(0, 10, "train", 59), std::nullopt);  // a collective came between
  watch_.on_heartbeat(0, waiting(10, "train"));
  EXPECT_EQ(found_after(0, 10, "train", 61), 61);
}

TEST_F(HangWatchTest, a_machine_that_stood_still_accuses_nobody) {
  watch_.on_heartbeat(0, at(9, "train", 1s));
  watch_.on_heartbeat(0, at(9, "train", 500s));  // all processes were stopped
  EXPECT_EQ(watch_.judge(0), std::nullopt);
  watch_.on_heartbeat(1, at(9, "train", 500s));  // the launcher was
  EXPECT_EQ(watch_.judge(1), std::nullopt);
  watch_.on_heartbeat(0, at(10, "train", 0s));
  EXPECT_EQ(watch_.judge(0), std::nullopt);
}

TEST_F(HangWatchTest, who_never_reports_is_never_judged) {
  EXPECT_EQ(found_after(0, 0, "", 5000), std::nullopt);
  WorkerHeartbeat old{.step = 1, .phase = "train", .age = 5000s};  // of an older library
  for (int second = 0; second < 1000; ++second) watch_.on_heartbeat(1, old);
  EXPECT_EQ(watch_.judge(1), std::nullopt);
}

TEST_F(HangWatchTest, no_timeout_finds_nobody) {
  watch_ = HangWatch(0s);
  EXPECT_EQ(found_after(0, 9, "train", 5000), std::nullopt);
}
