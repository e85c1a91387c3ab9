#include "lockstep/trainer.h"

#include <csignal>
#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/loader.h"
#include "lockstep/store.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"
#include "tests/train/line.h"

using namespace lockstep;
using lockstep::testing::kSquaredError;
using lockstep::testing::Line;
using lockstep::testing::new_model;
using lockstep::testing::refusal;
using lockstep::testing::TemporaryFolder;

namespace {

TrainerOptions quiet(TrainerOptions options) {
  options.progress = false;
  return options;
}

bool same(const torch::nn::Linear& a, const torch::nn::Linear& b) {
  return torch::equal(a->weight, b->weight) && torch::equal(a->bias, b->bias);
}

/// Notes what it is told.
struct Recorder : Callback {
  void on_start(std::int64_t step) override { events.push_back(concat("start ", step)); }
  void on_step(const StepReport& report) override {
    events.push_back(concat("step ", report.step));
    reports.push_back(report);
  }
  void on_epoch_end(std::int64_t epoch) override { events.push_back(concat("epoch ", epoch)); }
  void on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) override {
    events.push_back(concat("evaluation ", step));
    evaluations.push_back(metrics);
  }
  void on_save(std::int64_t step) override { events.push_back(concat("save ", step)); }
  void on_end(const TrainResult&) override { events.push_back("end"); }
  bool wants_to_stop() const override { return stop; }

  std::vector<std::string> events;
  std::vector<StepReport> reports;
  std::vector<std::map<std::string, double>> evaluations;
  bool stop = false;
};

}  // namespace

TEST(Trainer, has_the_bits_of_a_loop_written_by_hand) {
  auto expected = new_model();
  {
    SGD optimizer(named_parameters(*expected), {.lr = 0.1, .momentum = 0.9});
    Loader data(Line{}, {.batch_size = 8, .shuffle = true, .seed = 4});
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& [x, y] : data.epoch(epoch)) {
        optimizer.zero_grad();
        torch::mse_loss(expected(x), y).backward();
        optimizer.step();
      }
    }
  }
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8, .shuffle = true, .seed = 4});
  const TrainResult result =
      fit(model, data, kSquaredError,
          quiet({.epochs = 3, .optimizer = SGDOptions{.lr = 0.1, .momentum = 0.9}}));
  EXPECT_TRUE(same(model, expected));
  EXPECT_EQ(result.step, 24);
  EXPECT_EQ(result.epoch, 3);
  EXPECT_EQ(result.reason, StopReason::finished);
}

TEST(Trainer, uneven_batches_and_micro_batches_weigh_by_their_samples) {
  // 20 samples as batches of 6, 6, 6 and 2, two to a step, are those of batches of 12 and 8.
  auto model = new_model(), expected = new_model();
  Loader data(Line{20}, {.batch_size = 6});
  fit(model, data, kSquaredError,
      quiet({.epochs = 2, .optimizer = SGDOptions{.lr = 0.1}, .accumulate = 2}));
  Loader whole(Line{20}, {.batch_size = 12});
  fit(expected, whole, kSquaredError, quiet({.epochs = 2, .optimizer = SGDOptions{.lr = 0.1}}));
  EXPECT_TRUE(torch::allclose(model->weight, expected->weight, 1e-6, 1e-7));
  EXPECT_FALSE(torch::equal(model->weight, new_model()->weight));
}

TEST(Trainer, sums_and_counts_equal_means_where_all_count_alike) {
  auto by_mean = new_model(), by_sum = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const TrainerOptions options =
      quiet({.epochs = 2, .optimizer = SGDOptions{.lr = 0.1}, .accumulate = 2});
  fit(by_mean, data, kSquaredError, options);
  fit(
      by_sum, data,
      [](auto& model, const auto& batch) {
        const auto error = (model(batch.first) - batch.second).square();
        return LossSum{.sum = error.sum(), .count = static_cast<double>(error.numel())};
      },
      options);
  EXPECT_TRUE(same(by_mean, by_sum)) << "all factors are powers of two";
}

TEST(Trainer, what_was_counted_on_the_device_counts) {
  auto by_host = new_model(), by_device = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const auto loss = [](bool on_device) {
    return [on_device](auto& model, const auto& batch) {
      const auto error = (model(batch.first) - batch.second).square();
      const auto counted = batch.first.select(1, 0).gt(0.5).sum() + 1;
      if (on_device) return LossSum{.sum = error.sum(), .count = NAN, .counted = counted};
      return LossSum{.sum = error.sum(), .count = counted.template item<double>()};
    };
  };
  const TrainerOptions options = quiet({.epochs = 2, .accumulate = 2});
  fit(by_host, data, loss(false), options);
  fit(by_device, data, loss(true), options);
  EXPECT_TRUE(same(by_host, by_device));
}

TEST(Trainer, callbacks_hear_of_everything_in_order) {
  const TemporaryFolder folder;
  auto recorder = std::make_shared<Recorder>();
  auto model = new_model();
  Loader data(Line{16}, {.batch_size = 8}), held_out(Line{5}, {.batch_size = 2});
  Trainer trainer(quiet({.epochs = 2,
                         .snapshots = {.directory = folder / "run", .every = {.steps = 3}},
                         .log_every = 2,
                         .callbacks = {recorder}}));
  trainer.fit(model, data, kSquaredError, Evaluation{held_out, kSquaredError});
  EXPECT_EQ(
      recorder->events,
      (std::vector<std::string>{"start 0", "step 1", "step 2", "epoch 0", "evaluation 2", "step 3",
                                "save 3", "step 4", "epoch 1", "evaluation 4", "save 4", "end"}));
  EXPECT_FALSE(recorder->reports[0].loss);
  EXPECT_TRUE(recorder->reports[1].loss);
}

TEST(Trainer, an_evaluation_concludes_with_what_is_no_mean) {
  auto model = new_model();
  Loader data(Line{16}, {.batch_size = 8}), held_out(Line{5}, {.batch_size = 2});
  std::int64_t seen = 0;
  const auto metrics = [&](auto& model, const auto& batch) {
    seen += batch.first.size(0);
    return kSquaredError(model, batch);
  };
  const auto conclude = [&](ProcessGroup& group) {
    double all = 0;
    for (const auto& count : group.all_gather_json(seen)) all += count.template get<double>();
    return std::map<std::string, double>{{"samples", all}};
  };
  const TrainResult result =
      Trainer(quiet({.epochs = 1}))
          .fit(model, data, kSquaredError, Evaluation{held_out, metrics, conclude});
  EXPECT_EQ(result.evaluation.at("eval/samples"), 5);
  EXPECT_TRUE(result.evaluation.contains("eval/loss"));
}

TEST(Trainer, a_finished_run_is_not_repeated_and_a_longer_one_goes_on) {
  const TemporaryFolder folder;
  const auto train = [&](std::int64_t steps) {
    auto model = new_model();
    Loader data(Line{}, {.batch_size = 8, .shuffle = true});
    const TrainResult result =
        fit(model, data, kSquaredError,
            quiet({.steps = steps, .snapshots = {.directory = folder / "run"}}));
    EXPECT_EQ(result.step, steps);
    return std::pair(model, result.resumed_from);
  };
  const auto [first, none] = train(5);
  EXPECT_EQ(none, 0);
  const auto [again, from_5] = train(5);
  EXPECT_EQ(from_5, 5);
  EXPECT_TRUE(same(first, again));
  const auto [longer, also_from_5] = train(12);
  EXPECT_EQ(also_from_5, 5);
  auto expected = new_model();
  Loader data(Line{}, {.batch_size = 8, .shuffle = true});
  fit(expected, data, kSquaredError, quiet({.steps = 12}));
  EXPECT_TRUE(same(longer, expected));
}

TEST(Trainer, goes_on_with_the_epochs_of_a_run_that_left_only_weights) {
  const auto train = [](const torch::nn::Linear& model, std::int64_t first, std::int64_t epochs) {
    Loader data(Line{}, {.batch_size = 8, .shuffle = true});
    return fit(model, data, kSquaredError,
               quiet({.epochs = epochs, .first_epoch = first, .optimizer = SGDOptions{.lr = 0.1}}));
  };
  auto at_once = new_model(), in_two = new_model();
  train(at_once, 0, 5);
  train(in_two, 0, 2);
  EXPECT_EQ(train(in_two, 2, 5).step, 40);
  EXPECT_TRUE(same(at_once, in_two));
}

TEST(Trainer, another_seed_or_accumulation_is_not_a_continuation) {
  const TemporaryFolder folder;
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  TrainerOptions options = quiet({.steps = 2, .snapshots = {.directory = folder / "run"}});
  fit(model, data, kSquaredError, options);
  options.seed = 1;
  EXPECT_THROW(fit(model, data, kSquaredError, options), InvalidArgument);
  options.seed = 0;
  options.accumulate = 2;
  EXPECT_THROW(fit(model, data, kSquaredError, options), InvalidArgument);
}

TEST(Trainer, early_stopping_ends_the_run_and_the_best_is_kept) {
  const TemporaryFolder folder;
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8}), held_out(Line{8}, {.batch_size = 8});
  int evaluations = 0;
  Trainer trainer(quiet({.epochs = 20,
                         .watch = {.metric = "eval/score", .patience = 2},
                         .snapshots = {.directory = folder / "run", .keep_best = true}}));
  const TrainResult result = trainer.fit(
      model, data, kSquaredError,
      Evaluation{held_out, [&](auto&, const auto&) {
                   constexpr double kScores[] = {5, 3, 4, 4, 1};
                   return MetricSums{
                       {"score", {.sum = torch::full({}, kScores[evaluations++]), .count = 1}}};
                 }});
  EXPECT_EQ(result.reason, StopReason::early_stopped);
  EXPECT_EQ(evaluations, 4);
  EXPECT_EQ(result.best, 3.0);
  EXPECT_EQ(result.best_step, 16);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/snapshots/step_16"));
}

TEST(Trainer, a_non_finite_step_names_the_parameter) {
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const auto loss = [step = 0](auto& model, const auto& batch) mutable {
    auto value = torch::mse_loss(model(batch.first), batch.second);
    return step++ >= 3 ? value * std::numeric_limits<double>::infinity() : value;
  };
  try {
    fit(model, data, loss, quiet({.epochs = 1}));
    FAIL() << "nothing was thrown";
  } catch (const NonFiniteStep& error) {
    EXPECT_EQ(error.details().step, 3);
    EXPECT_EQ(error.details().rank, 0);
    EXPECT_EQ(error.details().parameter, "weight");
  }
  EXPECT_TRUE(torch::isfinite(model->weight).all().item<bool>());
}

TEST(Trainer, a_non_finite_step_can_be_skipped) {
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  auto recorder = std::make_shared<Recorder>();
  const auto loss = [](auto& model, const auto& batch) {
    auto value = torch::mse_loss(model(batch.first), batch.second);
    return value;
  };
  const auto poisoned = [&, step = 0](auto& model, const auto& batch) mutable {
    const bool bad = step == 2 || step == 3;  // the step is computed twice to find the culprit
    ++step;
    return bad ? loss(model, batch) * NAN : loss(model, batch);
  };
  fit(model, data, poisoned,
      quiet({.epochs = 1, .non_finite = NonFinite::skip, .callbacks = {recorder}}));
  ASSERT_EQ(recorder->reports.size(), 8u);
  for (const auto& report : recorder->reports) EXPECT_EQ(report.skipped, report.step == 3);
  EXPECT_TRUE(torch::isfinite(model->weight).all().item<bool>());
}

TEST(Trainer, a_callback_can_end_the_run) {
  auto recorder = std::make_shared<Recorder>();
  recorder->stop = true;
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const TrainResult result = fit(model, data, kSquaredError,
                                 quiet({.epochs = 100, .log_every = 1, .callbacks = {recorder}}));
  EXPECT_EQ(result.reason, StopReason::callback);
  EXPECT_EQ(result.step, 1);
}

TEST(Trainer, a_stream_trains_until_it_ends) {
  PushSource<std::pair<torch::Tensor, torch::Tensor>> source(64);
  for (int i = 0; i < 20; ++i) source.push(Line{}.get(i));
  source.close();
  auto model = new_model();
  Loader data(source, {.batch_size = 8});
  const TrainResult result = fit(model, data, kSquaredError, quiet({.epochs = 1}));
  EXPECT_EQ(result.step, 3);
}

TEST(Trainer, pure_bfloat16_and_float16_train) {
  for (const Precision precision : {Precision::bf16_weights, Precision::fp16_autocast}) {
    auto model = new_model();
    Loader data(Line{}, {.batch_size = 8});
    const auto loss = [](auto& model, const auto& batch) {
      return torch::mse_loss(model(batch.first).to(torch::kFloat), batch.second);
    };
    const TrainResult result =
        fit(model, data, loss,
            quiet({.epochs = 20, .optimizer = SGDOptions{.lr = 0.2}, .precision = precision}));
    EXPECT_LT(*result.loss, 0.05);
  }
}

TEST(Trainer, an_infinite_loss_is_noticed_although_its_gradients_are_finite) {
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const auto loss = [](auto& model, const auto& batch) {
    return torch::mse_loss(model(batch.first), batch.second) +
           std::numeric_limits<float>::infinity();
  };
  EXPECT_THROW(fit(model, data, loss, quiet({.epochs = 1})), NonFiniteStep);
}

TEST(Trainer, a_time_limit_ends_the_run_which_can_go_on) {
  const TemporaryFolder folder;
  const auto train = [&](std::optional<std::chrono::milliseconds> limit) {
    auto model = new_model();
    Loader data(Line{}, {.batch_size = 8, .shuffle = true});
    const TrainResult result =
        fit(model, data, kSquaredError,
            quiet({.epochs = 4, .time_limit = limit, .snapshots = {.directory = folder / "run"}}));
    return std::pair(model, result);
  };
  const auto [cut, first] = train(std::chrono::milliseconds(0));
  EXPECT_EQ(first.reason, StopReason::time_limit);
  EXPECT_LT(first.step, 32);
  const auto [whole, second] = train(std::nullopt);
  EXPECT_EQ(second.resumed_from, first.step);
  auto expected = new_model();
  Loader data(Line{}, {.batch_size = 8, .shuffle = true});
  fit(expected, data, kSquaredError, quiet({.epochs = 4}));
  EXPECT_TRUE(same(whole, expected));
}

TEST(Trainer, a_run_that_was_stopped_early_does_not_go_on) {
  const TemporaryFolder folder;
  const auto train = [&] {
    auto model = new_model();
    Loader data(Line{}, {.batch_size = 8}), held_out(Line{8}, {.batch_size = 8});
    Trainer trainer(quiet({.epochs = 20,
                           .watch = {.metric = "eval/constant", .patience = 2},
                           .snapshots = {.directory = folder / "run"}}));
    return trainer.fit(
        model, data, kSquaredError,
        Evaluation{held_out, [](auto&, const auto&) {
                     return MetricSums{{"constant", {.sum = torch::ones({}), .count = 1}}};
                   }});
  };
  const TrainResult first = train();
  EXPECT_EQ(first.reason, StopReason::early_stopped);
  const TrainResult second = train();
  EXPECT_EQ(second.reason, StopReason::early_stopped);
  EXPECT_EQ(second.step, first.step);
}

TEST(Trainer, a_directory_that_cannot_be_written_costs_snapshots_and_not_the_run) {
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  const TrainResult result =
      fit(model, data, kSquaredError,
          quiet({.epochs = 1, .snapshots = {.directory = "/dev/null/run", .every = {.steps = 2}}}));
  EXPECT_EQ(result.step, 8);
}

TEST(Trainer, another_loader_cannot_go_on_in_mid_epoch) {
  const TemporaryFolder folder;
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8}), other(Line{}, {.batch_size = 4});
  const auto options = [&](std::int64_t steps) {
    return quiet({.steps = steps, .snapshots = {.directory = folder / "run"}});
  };
  fit(model, data, kSquaredError, options(3));
  EXPECT_THROW(fit(model, other, kSquaredError, options(5)), InvalidArgument);
  EXPECT_EQ(fit(model, data, kSquaredError, options(5)).resumed_from, 3);
}

RANKS_TEST(Trainer, loaders_that_deal_in_the_wrong_way_are_refused, 2) {
  World world = init();
  auto model = new_model();
  Loader exact(Line{}, {.batch_size = 4, .dealing = Dealing::kExact});
  EXPECT_THROW(Trainer(world, quiet({.epochs = 1})).fit(model, exact, kSquaredError),
               InvalidArgument);
}

TEST(Trainer, options_that_contradict_each_other_are_refused) {
  EXPECT_THROW(Trainer({}), InvalidArgument);
  EXPECT_THROW(Trainer({.steps = 1, .accumulate = 0}), InvalidArgument);
  EXPECT_THROW(Trainer({.steps = 1, .ema_decay = 1}), InvalidArgument);
  EXPECT_THROW(Trainer({.steps = 1, .devices = 0}), InvalidArgument);
  for (const TrainerOptions& beside : {
           TrainerOptions{.precision = Precision::fp16_autocast},
           TrainerOptions{.ddp = {.find_unused_parameters = true}},
           TrainerOptions{.shard = ShardedOptions{}},
           TrainerOptions{.compression = CommHook::bf16_compress},
           TrainerOptions{.schedule = OneCycleSchedule{.total_steps = 9}},
       }) {
    TrainerOptions options = beside;
    options.steps = 1;
    const Trainer accepted(options);
    options.cuda_graph = true;
    EXPECT_NE(refusal([&] { Trainer refused(options); }).find("cuda_graph and"), std::string::npos);
  }
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 8});
  EXPECT_EQ(
      refusal([&] {
        World world = init(
            {.store = Store::tcp({.serve = true}), .rank = 0, .world_size = 1, .device = "cpu"});
        Trainer(world, quiet({.steps = 1, .cuda_graph = true})).fit(model, data, kSquaredError);
      }),
      "CUDA graphs need a GPU, and this process computes on cpu");
  EXPECT_THROW(fit(model, data, kSquaredError, quiet({.steps = 1, .watch = {.patience = 1}})),
               InvalidArgument);
  EXPECT_THROW(
      fit(model, data, kSquaredError, quiet({.steps = 1, .snapshots = {.every = {.steps = 1}}})),
      InvalidArgument);
  EXPECT_THROW(
      Trainer(quiet({.steps = 1})).fit(model, data, kSquaredError, Evaluation{data, kSquaredError}),
      InvalidArgument);
}

TEST(Trainer, an_empty_dataset_is_refused) {
  auto model = new_model();
  Loader data(Line{0}, {.batch_size = 8});
  EXPECT_THROW(fit(model, data, kSquaredError, quiet({.epochs = 1})), InvalidArgument);
}

RANKS_TEST(Trainer, evaluation_counts_every_sample_once, 3) {
  World world = init();
  auto recorder = std::make_shared<Recorder>();
  auto model = new_model();
  Loader data(Line{12}, {.batch_size = 4});
  Loader held_out(Line{10}, {.batch_size = 2, .dealing = Dealing::kExact});
  Trainer trainer(world, quiet({.epochs = 1, .callbacks = {recorder}}));
  trainer.fit(model, data, kSquaredError,
              Evaluation{held_out, [](auto&, const auto& batch) {
                           const double samples = batch.first.size(0);
                           return MetricSums{
                               {"samples", {.sum = torch::full({}, samples), .count = 1.0 / 3}},
                               {"x", {.sum = batch.first.select(1, 0).sum(), .count = samples}}};
                         }});
  ASSERT_EQ(recorder->evaluations.size(), 1u);
  double sum = 0;
  for (int i = 0; i < 10; ++i) sum += (i % 8) / 8.0;
  EXPECT_DOUBLE_EQ(recorder->evaluations[0].at("eval/x"), sum / 10);
}

RANKS_TEST(Trainer, the_rank_whose_gradient_is_not_finite_is_named_everywhere, 3) {
  World world = init();
  auto model = new_model();
  Loader data(Line{}, {.batch_size = 4});
  Trainer trainer(world, quiet({.epochs = 1}));
  try {
    trainer.fit(model, data, [&](auto& model, const auto& batch) {
      const auto loss = torch::mse_loss(model(batch.first), batch.second);
      return world.rank() == 1 ? loss * NAN : loss;
    });
    FAIL() << "nothing was thrown";
  } catch (const NonFiniteStep& error) {
    EXPECT_EQ(error.details().rank, 1);
    EXPECT_EQ(error.details().step, 0);
  }
}

RANKS_TEST(Trainer, a_signal_at_one_rank_stops_all_and_the_run_can_be_resumed, 2) {
  const std::string folder =
      concat(std::filesystem::temp_directory_path().string(), "/lockstep_preempted_", ::getppid());
  World world = init();
  struct Signaller : Callback {
    void on_step(const StepReport& report) override {
      if (report.step == at_step && lockstep::testing::this_rank() == 1) std::raise(number);
    }
    int number = SIGUSR1;
    std::int64_t at_step = 3;
  };
  const auto train = [&](TrainerOptions options) {
    auto model = new_model();
    Loader data(Line{256}, {.batch_size = 2, .shuffle = true});
    options.epochs = 20;
    options.snapshots.directory = folder;
    Trainer trainer(world, quiet(options));
    const TrainResult result = trainer.fit(model, data, kSquaredError);
    return std::pair(model, result);
  };
  EXPECT_THROW(train({.callbacks = {std::make_shared<Signaller>()}}), Preempted);
  const auto interrupter = std::make_shared<Signaller>();
  interrupter->number = SIGINT;
  interrupter->at_step = 100;
  try {
    train({.callbacks = {interrupter}});
    ADD_FAILURE() << "it was not interrupted";
  } catch (const Preempted& preempted) {
    const std::string by = world.rank() == 1 ? "stopped by Ctrl-C" : "stopped by another rank's";
    EXPECT_NE(std::string(preempted.what()).find(by), std::string::npos) << preempted.what();
  }
  const auto [model, result] = train({});
  EXPECT_EQ(result.reason, StopReason::finished);
  EXPECT_GE(result.resumed_from, 100);
  EXPECT_LT(result.resumed_from, 64 * 20);
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(folder);
}
