// What a Trainer says about its steps, and beginning with the state of another program's run.
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/snapshot.h"
#include "lockstep/trainer.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/train/line.h"

using namespace lockstep;
using lockstep::testing::kSquaredError;
using lockstep::testing::Line;
using lockstep::testing::new_model;
using lockstep::testing::TemporaryFolder;

namespace {

struct ReportKeeper : Callback {
  void on_step(const StepReport& report) override { reports.push_back(report); }
  std::map<std::string, double> log_values(const StepReport& report) override {
    return {{"twice", 2.0 * static_cast<double>(report.step)}};
  }
  std::vector<StepReport> reports;
};

TrainerOptions two_epochs() {
  TrainerOptions options{.epochs = 2, .optimizer = AdamWOptions{.lr = 0.1}};
  options.progress = false;
  return options;
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace

TEST(TrainerReports, times_of_the_phases_are_means_that_add_up) {
  constexpr std::chrono::milliseconds kForward(20);
  auto recorder = std::make_shared<ReportKeeper>();
  TrainerOptions options = two_epochs();
  options.steps = 4;
  options.log_every = 2;
  options.callbacks = {recorder};
  Loader data(Line{}, {.batch_size = 8});
  fit(
      new_model(), data,
      [&](auto& model, const auto& batch) {
        std::this_thread::sleep_for(kForward);
        return kSquaredError(model, batch);
      },
      options);
  ASSERT_EQ(recorder->reports.size(), 4U);
  EXPECT_FALSE(recorder->reports[0].times);
  for (const std::size_t logged : {1U, 3U}) {
    ASSERT_TRUE(recorder->reports[logged].times);
    const StepTimes& times = *recorder->reports[logged].times;
    EXPECT_GE(times.forward, 0.020) << "a sum over steps would be 0.040";
    EXPECT_LT(times.forward, times.total);
    EXPECT_GT(times.backward, 0);
    EXPECT_GT(times.update, 0);
    const double sum = times.data + times.forward + times.backward + times.reduce + times.update;
    EXPECT_NEAR(sum, times.total, 1e-9);
  }
}

RANKS_TEST(TrainerReports, waiting_for_a_slow_rank_is_no_time_in_backward, 2) {
  World world = init();
  auto recorder = std::make_shared<ReportKeeper>();
  TrainerOptions options = two_epochs();
  options.steps = 4;
  options.log_every = 4;
  options.callbacks = {recorder};
  Loader data(Line{}, {.batch_size = 8});
  Trainer(world, options).fit(new_model(), data, [&](auto& model, const auto& batch) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return kSquaredError(model, batch);
  });
  const StepTimes& times = recorder->reports.back().times.value();
  // Rank 1 is slow, and rank 0 waits for it.
  EXPECT_GT(world.rank() == 0 ? times.reduce : times.forward, 0.5 * times.total);
}

RANKS_TEST(TrainerReports, every_rank_can_have_a_log_with_values_of_its_own, 2) {
  World world = init();
  const TemporaryFolder own;
  const std::string folder = world.group().broadcast_json(own / "run").get<std::string>();
  TrainerOptions options = two_epochs();
  options.log_every = 2;
  options.log_all_ranks = true;
  options.snapshots.directory = folder;
  options.callbacks = {std::make_shared<ReportKeeper>()};
  Loader data(Line{}, {.batch_size = 8});
  Trainer(world, options).fit(new_model(), data, kSquaredError);
  const auto lines = lines_of(concat(folder, "/metrics/rank_", world.rank(), ".jsonl"));
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1].at("step"), 4);
  EXPECT_EQ(lines[1].at("twice"), 8.0);
  EXPECT_GT(lines[1].at("time/total").get<double>(), 0);
  const auto records = lines_of(concat(folder, "/records/rank_", world.rank(), ".jsonl"));
  EXPECT_EQ(records.front().at("kind"), "start");
  EXPECT_EQ(records.front().at("config").at("trainer").at("world_size"), 2);
  EXPECT_EQ(records.back().at("kind"), "end");
  world.barrier();  // the folder is rank 0's
}

TEST(TrainerReports, a_callback_adds_to_the_metrics_of_an_evaluation) {
  struct Doubles : Callback {
    std::map<std::string, double> evaluation_values(
        const std::map<std::string, double>& metrics) override {
      return {{"eval/twice", 2 * metrics.at("eval/loss")}};
    }
    void on_evaluation(std::int64_t, const std::map<std::string, double>& metrics) override {
      seen = metrics;
    }
    std::map<std::string, double> seen;
  };
  const TemporaryFolder folder;
  TrainerOptions options = two_epochs();
  options.evaluate_every = {.epochs = 2};
  options.snapshots.directory = folder / "run";
  auto doubles = std::make_shared<Doubles>();
  options.callbacks = {doubles};
  Loader data(Line{}, {.batch_size = 8}), held_out(Line{}, {.batch_size = 8});
  const TrainResult result =
      Trainer(options).fit(new_model(), data, kSquaredError, Evaluation{held_out, kSquaredError});
  const double loss = result.evaluation.at("eval/loss");
  EXPECT_EQ(result.evaluation.at("eval/twice"), 2 * loss);
  EXPECT_EQ(doubles->seen, result.evaluation);
  const auto lines = lines_of(folder / "run/metrics/rank_0.jsonl");
  EXPECT_EQ(lines.back().at("eval/twice"), 2 * loss);
}

TEST(TrainerReports, a_run_whose_end_cannot_be_saved_does_not_end_well) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "not a folder";
  TrainerOptions options = two_epochs();
  Loader data(Line{}, {.batch_size = 8});
  options.snapshots.directory = folder / "run";
  const TrainResult well = fit(new_model(), data, kSquaredError, options);
  EXPECT_TRUE(well.saved);
  EXPECT_EQ(well.exit_code(), 0);
  options.snapshots.directory = folder / "file/run";
  const TrainResult badly = fit(new_model(), data, kSquaredError, options);
  EXPECT_EQ(badly.reason, StopReason::finished);
  EXPECT_FALSE(badly.saved);
  EXPECT_EQ(badly.exit_code(), 1);
}

TEST(TrainerReports, a_run_can_begin_with_the_state_of_another_one) {
  auto whole = new_model();
  Loader data(Line{}, {.batch_size = 8, .shuffle = true});
  fit(whole, data, kSquaredError, two_epochs());

  // Eleven steps, which end in the middle of the second epoch.
  const TemporaryFolder folder;
  auto first = new_model();
  TrainerOptions options = two_epochs();
  options.steps = 11;
  options.snapshots.directory = folder / "run";
  fit(first, data, kSquaredError, options);
  const Snapshot saved = read_snapshot(folder / "run/snapshots");
  auto initial = std::make_shared<Snapshot>();
  initial->parts["model"] = saved.parts.at("model");
  initial->parts["optimizer"] = saved.parts.at("optimizer");
  initial->parts["trainer"].values = {{"step", 11}, {"epoch", 1}, {"step_in_epoch", 3}};

  auto second = new_model();
  options = two_epochs();
  options.initial = initial;
  const TrainResult result = fit(second, data, kSquaredError, options);
  EXPECT_EQ(result.resumed_from, 11);
  EXPECT_EQ(result.step, 16);
  EXPECT_TRUE(torch::equal(second->weight, whole->weight));
  EXPECT_FALSE(torch::equal(second->weight, first->weight));
}
