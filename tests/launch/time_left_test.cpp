#include "launch/time_left.h"

#include <ctime>

#include <gtest/gtest.h>

using lockstep::end_time_of_job;
using lockstep::Environment;
using lockstep::time_left;
using lockstep::WallTime;
using std::chrono::seconds;

namespace {

const WallTime kNow{seconds(1'800'000'000)};

std::optional<seconds> left_of(Environment::Variables variables) {
  return time_left(Environment(std::move(variables)), kNow - seconds(100), kNow);
}

}  // namespace

TEST(TimeLeft, is_unknown_without_a_scheduler) {
  EXPECT_EQ(left_of({}), std::nullopt);
}

TEST(TimeLeft, is_what_slurm_says_before_what_a_job_script_says) {
  EXPECT_EQ(left_of({{"SLURM_JOB_END_TIME", "1800000060"}, {"LOCKSTEP_JOB_END_TIME", "1"}}),
            seconds(60));
  EXPECT_EQ(left_of({{"LOCKSTEP_JOB_END_TIME", "1800000055"}}), seconds(55));
}

TEST(TimeLeft, is_counted_from_the_start_where_pbs_gives_the_length) {
  EXPECT_EQ(left_of({{"PBS_WALLTIME", "160"}}), seconds(60));
}

TEST(TimeLeft, is_never_negative) {
  EXPECT_EQ(left_of({{"SLURM_JOB_END_TIME", "1799999999"}}), seconds(0));
}

TEST(TimeLeft, what_is_no_number_counts_as_unset) {
  EXPECT_EQ(left_of({{"SLURM_JOB_END_TIME", "soon"}, {"PBS_WALLTIME", "-3"}}), std::nullopt);
}

TEST(TimeLeft, the_end_is_found_in_what_scontrol_prints) {
  const auto end = end_time_of_job(
      "JobId=7 JobName=x StartTime=2026-11-16T12:00:00 EndTime=2026-11-16T12:34:56 Deadline=N/A");
  ASSERT_TRUE(end);
  const std::time_t time = std::chrono::system_clock::to_time_t(*end);
  std::tm local = {};
  ::localtime_r(&time, &local);
  EXPECT_EQ(local.tm_hour, 12);
  EXPECT_EQ(local.tm_min, 34);
  EXPECT_EQ(local.tm_sec, 56);
}

TEST(TimeLeft, a_job_without_limit_has_no_end) {
  EXPECT_EQ(end_time_of_job("JobId=7 StartTime=2026-11-16T12:00:00 EndTime=Unknown "),
            std::nullopt);
  EXPECT_EQ(end_time_of_job("slurm_load_jobs error"), std::nullopt);
}
