#include <cmath>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/metric_watch.h"
#include "tests/core/temporary_folder.h"
#include "train/run_curves.h"

using lockstep::InvalidArgument;
using lockstep::MetricMode;
using lockstep::MetricWatch;
using lockstep::RunCurves;
using lockstep::RunEvent;
using lockstep::RunJournal;
using lockstep::testing::read_text;

TEST(MetricWatch, knows_the_best_and_when_to_stop) {
  MetricWatch watch({.metric = "eval/loss", .min_delta = 0.1, .patience = 2});
  EXPECT_TRUE(watch.report(1, 1.0));
  EXPECT_FALSE(watch.report(2, 0.95)) << "not enough of an improvement";
  EXPECT_TRUE(watch.report(3, 0.8));
  EXPECT_FALSE(watch.report(4, NAN));
  EXPECT_FALSE(watch.should_stop());
  EXPECT_FALSE(watch.report(5, 0.9));
  EXPECT_TRUE(watch.should_stop());
  EXPECT_EQ(watch.best(), 0.8);
  EXPECT_EQ(watch.best_step(), 3);
}

TEST(MetricWatch, more_can_be_better) {
  MetricWatch watch({.mode = MetricMode::max});
  EXPECT_TRUE(watch.report(1, 0.5));
  EXPECT_TRUE(watch.report(2, 0.6));
  EXPECT_FALSE(watch.report(3, 0.6));
  EXPECT_FALSE(watch.should_stop()) << "no patience was given";
}

TEST(MetricWatch, goes_on_from_its_state) {
  MetricWatch first({.patience = 2});
  first.report(1, INFINITY);
  first.report(2, 2.0);
  first.report(3, 3.0);
  MetricWatch second({.patience = 2});
  second.load_state(first.state());
  EXPECT_EQ(second.best(), 2.0);
  EXPECT_FALSE(second.report(4, 2.5));
  EXPECT_TRUE(second.should_stop());
}

TEST(MetricWatch, keeps_infinity_as_the_best_so_far) {
  MetricWatch first({});
  first.report(1, INFINITY);
  MetricWatch second({});
  second.load_state(first.state());
  EXPECT_EQ(second.best(), INFINITY);
}

TEST(MetricWatch, refuses_what_makes_no_sense) {
  EXPECT_THROW(MetricWatch({.min_delta = -1}), InvalidArgument);
  EXPECT_THROW(MetricWatch({.patience = 0}), InvalidArgument);
}

namespace {

RunCurves curves_of(const std::string& directory, int slot, bool all_slots = false) {
  return RunCurves({.directory = directory,
                    .slot = slot,
                    .all_slots = all_slots,
                    .say = [](const std::string& line) { ADD_FAILURE() << line; }});
}

/// One line for each step up to `last`, of which a journal has the latest.
RunJournal journal_up_to(std::int64_t last) {
  RunJournal journal;
  for (std::int64_t step = 1; step <= last; ++step) {
    journal.add({.step = step, .log = {{"loss", 1.0 / static_cast<double>(step)}}});
  }
  return journal;
}

void tell(RunCurves& curves, const RunJournal& journal) {
  for (const RunEvent& event : journal.events()) curves.append(event.step, event.log);
  curves.flush();
}

std::vector<std::int64_t> steps_in(const std::string& path) {
  std::vector<std::int64_t> steps;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step"));
  }
  return steps;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST(RunCurves, whoever_becomes_rank_0_writes_what_the_one_before_has_missed) {
  const lockstep::testing::TemporaryFolder folder;
  RunCurves before = curves_of(folder / "run", 0);
  before.begin(/*is_main=*/true, /*step=*/0, /*continues=*/false);
  tell(before, journal_up_to(2));

  RunCurves after = curves_of(folder / "run", 1);
  after.begin(/*is_main=*/false, /*step=*/0, /*continues=*/false);
  after.append(3, {{"loss", 0.0}});  // not its file
  after.follow(/*is_main=*/true, {.lines = 4, .step = 4}, journal_up_to(4));
  after.append(5, {{"loss", 0.0}});
  after.flush();
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 3, 4, 5}));
}

TEST(RunCurves, whoever_becomes_rank_0_drops_a_line_of_a_step_that_only_the_dead_has_done) {
  const lockstep::testing::TemporaryFolder folder;
  RunCurves before = curves_of(folder / "run", 0);
  before.begin(/*is_main=*/true, /*step=*/0, /*continues=*/false);
  tell(before, journal_up_to(4));

  RunCurves after = curves_of(folder / "run", 1);
  after.follow(/*is_main=*/true, {.lines = 3, .step = 3}, journal_up_to(3));
  after.flush();
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 3}));
}

TEST(RunCurves, a_process_that_is_rank_0_no_more_leaves_the_curves_alone_and_keeps_its_own) {
  const lockstep::testing::TemporaryFolder folder;
  RunCurves second = curves_of(folder / "run", 1, /*all_slots=*/true);
  second.begin(/*is_main=*/false, /*step=*/0, /*continues=*/false);
  second.append(1, {{"loss", 0.0}});
  second.follow(/*is_main=*/true, {.lines = 1, .step = 1}, journal_up_to(1));
  second.append(2, {{"loss", 0.0}});

  second.stand_back(/*is_main=*/false);
  second.append(3, {{"loss", 0.0}});
  RunCurves first = curves_of(folder / "run", 0, /*all_slots=*/true);
  first.follow(/*is_main=*/true, {.lines = 3, .step = 3}, journal_up_to(3));
  first.flush();
  second.flush();
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 3}));
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_1.jsonl"), (Steps{1, 2, 3}));
}

TEST(RunCurves, what_stays_rank_0_is_not_disturbed) {
  const lockstep::testing::TemporaryFolder folder;
  RunCurves curves = curves_of(folder / "run", 0);
  curves.begin(/*is_main=*/true, /*step=*/0, /*continues=*/false);
  tell(curves, journal_up_to(3));
  curves.stand_back(/*is_main=*/true);
  curves.follow(/*is_main=*/true, {.lines = 3, .step = 3}, journal_up_to(3));
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 3}));
}

TEST(RunCurves, a_process_that_died_may_take_many_lines_with_it) {
  const lockstep::testing::TemporaryFolder folder;
  {
    RunCurves before = curves_of(folder / "run", 0);
    before.begin(/*is_main=*/true, /*step=*/0, /*continues=*/false);
    before.append(1, {{"loss", 1.0}, {"time/total", 3.0}});
  }
  RunCurves after = curves_of(folder / "run", 1);
  after.follow(/*is_main=*/true, {.lines = 40, .step = 40}, journal_up_to(40));
  after.flush();
  Steps all;
  for (std::int64_t step = 1; step <= 40; ++step) all.push_back(step);
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), all);
}

TEST(RunCurves, a_step_may_have_two_lines) {
  const lockstep::testing::TemporaryFolder folder;
  RunJournal journal = journal_up_to(2);
  {
    RunCurves before = curves_of(folder / "run", 0);
    before.begin(/*is_main=*/true, /*step=*/0, /*continues=*/false);
    tell(before, journal);
  }
  journal.add({.kind = RunEvent::Kind::evaluation, .step = 2, .log = {{"eval/loss", 0.5}}});
  RunCurves after = curves_of(folder / "run", 1);
  after.follow(/*is_main=*/true, {.lines = 3, .step = 2}, journal);
  after.flush();
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 2}));
}

TEST(RunCurves, a_program_that_saves_by_itself_goes_on_with_its_curves) {
  const lockstep::testing::TemporaryFolder folder;
  {
    RunCurves before = curves_of(folder / "run", 0);
    before.begin(/*is_main=*/true, /*step=*/0, /*continues=*/true);
    tell(before, journal_up_to(5));
  }
  RunCurves after = curves_of(folder / "run", 0);
  EXPECT_EQ(after.begin(/*is_main=*/true, /*step=*/3, /*continues=*/true), 3);
  after.append(4, {{"loss", 0.0}});
  after.flush();
  EXPECT_EQ(steps_in(folder / "run/metrics/rank_0.jsonl"), (Steps{1, 2, 3, 4}));
}
