#include "control/progress_meter.h"

#include <gtest/gtest.h>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

class ProgressMeterTest : public ::testing::Test {
 protected:
  ProgressMeter meter_;
  ProgressMeter::Clock::time_point now_{1h};

  void report(std::int64_t step, const char* phase) { meter_.report(step, phase, now_); }
  void pass(std::chrono::milliseconds time) { now_ += time; }
  WorkerHeartbeat look() { return meter_.look(now_); }
};

}  // namespace

TEST_F(ProgressMeterTest, before_the_first_report_there_is_nothing_to_tell) {
  pass(1h);
  EXPECT_EQ(look(), WorkerHeartbeat{});
  meter_.wait_began("barrier", now_);
  pass(1h);
  EXPECT_EQ(look(), (WorkerHeartbeat{.waits_for = "barrier"}));
}

TEST_F(ProgressMeterTest, time_by_itself_counts_from_the_last_sign_of_progress) {
  report(7, "train");
  pass(20ms);
  EXPECT_EQ(look(), (WorkerHeartbeat{.step = 7, .phase = "train", .age = 20ms, .alone = 20ms}));
  meter_.wait_began("all_reduce", now_);
  pass(5s);
  EXPECT_EQ(look().waits_for, "all_reduce");
  EXPECT_EQ(look().alone, 0ms);
  EXPECT_EQ(look().age, 5020ms);
  meter_.wait_ended(1, now_);
  pass(30ms);
  EXPECT_EQ(look().alone, 30ms);
  EXPECT_EQ(look().longest_alone, 20ms);
  EXPECT_EQ(look().waits_for, "");
}

TEST_F(ProgressMeterTest, one_wait_of_several_is_enough) {
  report(7, "train");
  meter_.wait_began("all_reduce", now_);
  meter_.wait_began("broadcast", now_);
  meter_.wait_began("broadcast", now_);
  meter_.wait_ended(2, now_);
  pass(1s);
  EXPECT_EQ(look().alone, 0ms);
  meter_.wait_ended(1, now_);
  pass(1s);
  EXPECT_EQ(look().alone, 1s);
}

TEST_F(ProgressMeterTest, each_phase_has_its_own_longest_time_and_counts_its_visits) {
  for (int step = 0; step < 4; ++step) {
    report(step, "data");
    pass(5ms);
    report(step, "train");
    pass(step == 2 ? 90ms : 10ms);
  }
  report(4, "evaluate");
  pass(50s);
  EXPECT_EQ(look().visits, 0);
  EXPECT_EQ(look().longest_alone, 0ms);
  report(4, "train");
  EXPECT_EQ(look().visits, 4);
  EXPECT_EQ(look().longest_alone, 90ms);
  report(5, "train");
  EXPECT_EQ(look().visits, 5);
  report(5, "data");
  EXPECT_EQ(look().longest_alone, 5ms);
}

TEST_F(ProgressMeterTest, a_program_with_ever_new_phases_is_heard_all_the_same) {
  for (int step = 0; step < 1000; ++step) report(step, std::to_string(step).c_str());
  EXPECT_EQ(look().phase, "999");
  EXPECT_EQ(look().visits, 0);
  report(1000, "3");
  EXPECT_EQ(look().visits, 1);
}

TEST_F(ProgressMeterTest, adds_up_how_steps_spent_their_time) {
  meter_.add_step({.steps = 1, .data = 5us, .compute = 20us, .waiting = 7us});
  meter_.add_step({.steps = 1, .data = 1us, .compute = 30us, .waiting = 0us});
  EXPECT_EQ(look().work, (StepWork{.steps = 2, .data = 6us, .compute = 50us, .waiting = 7us}));
}
