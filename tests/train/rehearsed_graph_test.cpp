#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/trainer.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"
#include "train/step_graphs.h"

// All that surrounds graphs, with a recorder that does the work each time.
using namespace lockstep;
using lockstep::testing::refusal;
using lockstep::testing::TemporaryFolder;

namespace {

struct Rehearsing {
  Rehearsing() { ::setenv("LOCKSTEP_REHEARSE_GRAPHS", "1", /*replace=*/1); }
  ~Rehearsing() { ::unsetenv("LOCKSTEP_REHEARSE_GRAPHS"); }
};

struct Waves {
  std::int64_t count = 70;
  std::int64_t not_numbers_from = 0, not_numbers_to = 0;
  std::int64_t size() const { return count; }
  std::pair<at::Tensor, at::Tensor> get(std::int64_t index) const {
    at::Tensor x = torch::arange(8, torch::kFloat).add(index).mul(0.7).sin();
    const at::Tensor y = x.sum().reshape({1});
    if (index >= not_numbers_from && index < not_numbers_to) x[0] = NAN;
    return {x, y};
  }
};

// One after the other, each of its own length.
struct Sequences {
  std::int64_t size() const { return 24; }
  at::Tensor get(std::int64_t index) const { return torch::ones({index % 3 + 2}) * index; }
};

constexpr auto kMeanError = [](auto& model, const auto& batch) {
  return torch::mse_loss(model(batch.first), batch.second);
};

torch::nn::Sequential new_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16),
                               torch::nn::Dropout(0.2), torch::nn::Linear(16, 1));
}

// A learning rate that a float has, too.
TrainerOptions options_of(std::int64_t accumulate) {
  TrainerOptions options{.epochs = 5,
                         .optimizer = AdamWOptions{.lr = 0x1p-7},
                         .accumulate = accumulate,
                         .clip_grad_norm = 0.5};
  options.non_finite = NonFinite::skip;
  options.progress = false;
  return options;
}

template <typename Data, typename Loss>
State weights_of(Data&& data, Loss loss, const TrainerOptions& options) {
  const auto net = new_net();
  fit(net, data, loss, options);
  return module_state(*net);
}

// Returns how many parts of steps were replayed.
template <typename Make, typename Loss>
int expect_same_bits(Make make, Loss loss, TrainerOptions options) {
  const State plain = weights_of(make(), loss, options);
  options.cuda_graph = true;
  const Rehearsing rehearsing;
  const int before = rehearsed_parts().replayed;
  const State rehearsed = weights_of(make(), loss, options);
  for (const auto& [name, tensor] : plain.tensors) {
    EXPECT_TRUE(tensor.equal(rehearsed.tensors.at(name))) << name;
    EXPECT_TRUE(tensor.isfinite().all().template item<bool>()) << name;
  }
  return rehearsed_parts().replayed - before;
}

}  // namespace

TEST(RehearsedGraph, steps_of_any_number_of_micro_batches_have_the_bits_of_plain_ones) {
  for (const std::int64_t accumulate : {1, 2, 3, 5}) {
    SCOPED_TRACE(accumulate);
    EXPECT_GT(expect_same_bits([] { return Loader(Waves{}, {.batch_size = 4, .shuffle = true}); },
                               kMeanError, options_of(accumulate)),
              0);
  }
}

TEST(RehearsedGraph, a_step_that_is_skipped_is_neither_a_warm_up_nor_recorded) {
  // The first three; the fourth, which would be recorded; one that would be replayed.
  for (const auto& [from, to] : {std::pair{0, 12}, {12, 16}, {24, 28}}) {
    SCOPED_TRACE(from);
    EXPECT_GT(expect_same_bits(
                  [from = from, to = to] {
                    return Loader(Waves{.not_numbers_from = from, .not_numbers_to = to},
                                  {.batch_size = 4});
                  },
                  kMeanError, options_of(1)),
              0);
  }
}

TEST(RehearsedGraph, batches_of_other_shapes_are_computed_as_they_are) {
  const auto loss = [](auto& model, const at::Tensor& batch) {
    return model(torch::ones({4, 8}) * batch.mean()).square().mean();
  };
  for (const std::int64_t accumulate : {1, 2, 3}) {
    const int replayed = expect_same_bits([] { return Loader(Sequences{}, {.batch_size = 1}); },
                                          loss, options_of(accumulate));
    EXPECT_EQ(replayed > 0, accumulate == 1) << accumulate;  // steps of one shape
  }
}

// As a collate gives them that makes one tensor and cuts it.
TEST(RehearsedGraph, batches_that_lie_in_larger_tensors_are_replayed) {
  const auto cut = [](const std::vector<std::pair<at::Tensor, at::Tensor>>& samples) {
    std::vector<at::Tensor> rows;
    for (const auto& [x, y] : samples) rows.push_back(torch::cat({x, y}));
    const at::Tensor all = torch::stack(rows);
    return std::pair(all.narrow(1, 0, 8), all.narrow(1, 8, 1).expand({-1, 2}));
  };
  const auto loss = [](auto& model, const auto& batch) {
    return (model(batch.first) - batch.second).square().mean();
  };
  for (const std::int64_t accumulate : {1, 2}) {
    const int replayed = expect_same_bits(
        [&] { return Loader<Waves, decltype(cut)>(Waves{}, {.batch_size = 4}, cut); }, loss,
        options_of(accumulate));
    EXPECT_GT(replayed, 0) << accumulate;
  }
}

namespace {

// One after the other, the first of another length.
struct FirstIsLonger {
  std::int64_t length_of(std::int64_t index) const { return index == 0 ? 5 : 3; }
  std::int64_t size() const { return 24; }
  at::Tensor get(std::int64_t index) const { return torch::ones({length_of(index)}) * index; }
};

// Each has the length of no other.
struct AllDiffer : FirstIsLonger {
  at::Tensor get(std::int64_t index) const { return torch::ones({index + 1}); }
};

constexpr auto kMeanLoss = [](auto& model, const at::Tensor& batch) {
  return model(torch::ones({4, 8}) * batch.mean()).square().mean();
};

}  // namespace

TEST(RehearsedGraph, a_first_batch_of_another_count_does_not_count) {
  const auto sum = [](auto& model, const at::Tensor& batch) {
    const at::Tensor errors = model(torch::ones({4, 8}) * batch.mean()).square();
    return LossSum{.sum = errors.sum(),
                   .count = static_cast<double>(batch.numel()),
                   .metrics = {{"numbers", {.sum = batch.sum(), .count = batch.size(1) / 2.0}}}};
  };
  const auto make = [] { return Loader(FirstIsLonger{}, {.batch_size = 1}); };
  EXPECT_GT(expect_same_bits(make, sum, options_of(1)), 0);
}

TEST(RehearsedGraph, a_first_batch_of_another_shape_does_not_keep_the_others_from_being_recorded) {
  const int replayed = expect_same_bits([] { return Loader(FirstIsLonger{}, {.batch_size = 1}); },
                                        kMeanLoss, options_of(1));
  EXPECT_GT(replayed, 0);
}

TEST(RehearsedGraph, a_run_that_records_nothing_says_so_once) {
  TrainerOptions options = options_of(1);
  options.cuda_graph = true;
  const Rehearsing rehearsing;
  ::testing::internal::CaptureStderr();
  weights_of(Loader(AllDiffer{}, {.batch_size = 1}), kMeanLoss, options);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::size_t at = said.find("cuda_graph: after 50 steps none is recorded");
  EXPECT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("none is recorded", at + 50), std::string::npos) << said;
}

TEST(RehearsedGraph, inputs_may_want_gradients_of_their_own) {
  const auto penalty = [](auto& model, auto& batch) {
    batch.first.requires_grad_();
    const at::Tensor loss = torch::mse_loss(model(batch.first), batch.second);
    const auto gradient = torch::autograd::grad({loss}, {batch.first}, {}, true, true);
    return loss + gradient[0].square().sum();
  };
  EXPECT_GT(
      expect_same_bits([] { return Loader(Waves{}, {.batch_size = 4}); }, penalty, options_of(2)),
      0);
}

// The run goes on with the last step of an epoch, which is the largest one at first.
TEST(RehearsedGraph, a_run_that_goes_on_with_a_small_step_records_the_usual_ones) {
  const TemporaryFolder folder;
  const auto sum = [](auto& model, const auto& batch) {
    const at::Tensor error = (model(batch.first) - batch.second).square();
    return LossSum{.sum = error.sum(), .count = static_cast<double>(error.numel())};
  };
  const auto run = [&](const char* name, std::int64_t steps) {
    TrainerOptions options = options_of(1);
    options.steps = steps;
    options.cuda_graph = true;
    options.snapshots.directory = folder / name;
    return weights_of(Loader(Waves{}, {.batch_size = 8}), sum, options);
  };
  const Rehearsing rehearsing;
  run("parts", 8);
  const RehearsedParts before = rehearsed_parts();
  const State rest = run("parts", 30), whole = run("whole", 30);
  EXPECT_EQ(rehearsed_parts().recorded, before.recorded + 2 * 3);
  for (const auto& [name, tensor] : whole.tensors) {
    EXPECT_TRUE(tensor.equal(rest.tensors.at(name))) << name;
  }
}

namespace {

struct Opaque {
  explicit Opaque(at::Tensor value) : value(std::move(value)) {}
  at::Tensor value;
};

struct OpaqueData {
  std::int64_t size() const { return 8; }
  Opaque get(std::int64_t) const { return Opaque(torch::ones({1, 8})); }
};

}  // namespace

TEST(RehearsedGraph, a_batch_whose_tensors_are_not_found_is_refused) {
  TrainerOptions options = options_of(1);
  const auto loss = [](auto& model, const std::vector<Opaque>& batch) {
    return model(torch::cat({batch[0].value, batch[1].value})).square().mean();
  };
  weights_of(Loader(OpaqueData{}, {.batch_size = 2}), loss, options);
  options.cuda_graph = true;
  const Rehearsing rehearsing;
  EXPECT_NE(refusal([&] {
              weights_of(Loader(OpaqueData{}, {.batch_size = 2}), loss, options);
            }).find("no tensors are found in a batch"),
            std::string::npos);
}

RANKS_TEST(RehearsedGraph, ranks_replay_together, 2) {
  World world = init();
  const auto run = [&](bool graph) {
    TrainerOptions options = options_of(2);
    options.cuda_graph = graph;
    options.epochs = 12;
    const auto net = new_net();
    Loader data(Waves{}, {.batch_size = 4, .shuffle = true});
    Trainer(world, options).fit(net, data, kMeanError);
    return module_state(*net);
  };
  const State plain = run(false);
  const Rehearsing rehearsing;
  const State rehearsed = run(true);
  EXPECT_GT(rehearsed_parts().replayed, 0);
  for (const auto& [name, tensor] : plain.tensors) {
    EXPECT_TRUE(tensor.equal(rehearsed.tensors.at(name))) << name;
  }
}

// Whatever looks at a loss waits for the device, so the time-out has to come before.
RANKS_TEST(RehearsedGraph, a_replay_that_does_not_end_has_the_groups_time_out, 2) {
  World world = init();
  TrainerOptions options = options_of(2);
  options.cuda_graph = true;
  options.log_every = 1;
  options.epochs = 12;
  const auto sum = [](auto& model, const auto& batch) {
    const at::Tensor errors = (model(batch.first) - batch.second).square();
    return LossSum{.sum = errors.sum(), .count = 4};
  };
  struct Hangs : Callback {
    void on_step(const StepReport& report) override {
      last = report.step;
      rehearsed_parts().hang = rehearsed_parts().replayed > 0;
    }
    std::int64_t last = 0;
  };
  const auto hangs = std::make_shared<Hangs>();
  options.callbacks = {hangs};
  const Rehearsing rehearsing;
  Loader data(Waves{}, {.batch_size = 4});
  std::string said;
  try {
    Trainer(world, options).fit(new_net(), data, sum);
  } catch (const Timeout& timeout) {
    said = timeout.what();
  }
  EXPECT_EQ(said,
            "step " + std::to_string(hangs->last) +
                ": the gradients were not reduced within 1800000 ms; a rank hangs or is lost");
}

// The count is only known when the gradients are there: they are divided by it, or multiplied by
// what it is 1 of.
TEST(RehearsedGraph, gradients_of_sums_have_the_bits_of_plain_ones_with_any_optimizer) {
  const auto sum = [](auto& model, const auto& batch) {
    const at::Tensor error = (model(batch.first) - batch.second).square();
    const at::Tensor count = batch.second.gt(0).sum() + 3;
    return LossSum{.sum = error.sum(), .count = count.template item<double>(), .counted = count};
  };
  for (const double clip : {0.0, 0.5}) {
    for (const OptimizerOptions& optimizer : std::initializer_list<OptimizerOptions>{
             SGDOptions{.lr = 0x1p-5, .momentum = 0.5}, AdamOptions{.lr = 0x1p-7},
             AdamWOptions{.lr = 0x1p-7}}) {
      SCOPED_TRACE(concat("optimizer ", optimizer.index(), ", clip ", clip));
      TrainerOptions options = options_of(1);
      options.optimizer = optimizer;
      options.clip_grad_norm = clip;
      const auto make = [] { return Loader(Waves{}, {.batch_size = 4, .shuffle = true}); };
      EXPECT_GT(expect_same_bits(make, sum, options), 0);
    }
  }
}

TEST(RehearsedGraph, counts_that_differ_must_be_tensors) {
  const auto counted = [](bool on_device) {
    return [on_device](auto& model, const auto& batch) {
      const at::Tensor error = (model(batch.first) - batch.second).square();
      const at::Tensor count = batch.second.gt(0).sum() + 1;
      LossSum loss{.sum = error.sum(), .count = count.template item<double>()};
      if (on_device) loss.counted = count;
      return loss;
    };
  };
  const auto make = [] { return Loader(Waves{}, {.batch_size = 4}); };
  EXPECT_GT(expect_same_bits(make, counted(true), options_of(2)), 0);
  TrainerOptions options = options_of(2);
  options.cuda_graph = true;
  const Rehearsing rehearsing;
  EXPECT_EQ(refusal([&] { weights_of(make(), counted(false), options); }),
            "cuda_graph: the count of the loss differs from batch to batch, and would stay as it "
            "is; give LossSum::counted, a tensor");
  const auto measures = [](auto& model, const auto& batch) {
    const at::Tensor error = (model(batch.first) - batch.second).square();
    return LossSum{
        .sum = error.sum(),
        .count = 4,
        .metrics = {
            {"mass", {.sum = error.sum(), .count = batch.second[0][0].template item<double>()}}}};
  };
  EXPECT_NE(refusal([&] { weights_of(make(), measures, options); }).find("the count of mass"),
            std::string::npos);
}

TEST(RehearsedGraph, only_steps_that_come_to_their_end_count) {
  const Rehearsing rehearsing;
  StepGraphs graphs(c10::Device(c10::kCPU), {.warm_ups = 2});
  const RehearsedParts before = rehearsed_parts();
  int done = 0;
  const auto step = [&](StepKind kind, bool ends) {
    graphs.begin_step(kind);
    graphs.run("first", [&] { ++done; });
    if (!ends) return;
    graphs.run("last", [&] { ++done; });
    graphs.end_step();
  };
  step(StepKind::usual, true);
  step(StepKind::usual, false);  // no warm-up
  step(StepKind::usual, true);
  step(StepKind::unusual, true);
  EXPECT_FALSE(graphs.is_recorded());
  step(StepKind::usual, false);  // not recorded
  EXPECT_FALSE(graphs.is_recorded());
  step(StepKind::usual, true);
  EXPECT_TRUE(graphs.is_recorded());
  step(StepKind::usual, true);
  step(StepKind::unusual, true);
  EXPECT_EQ(done, 14);
  EXPECT_EQ(rehearsed_parts().recorded, before.recorded + 1 + 2);
  EXPECT_EQ(rehearsed_parts().replayed, before.replayed + 2);
  graphs.forget();
  EXPECT_FALSE(graphs.is_recorded());
}
