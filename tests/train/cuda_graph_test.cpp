#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Sleep.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/token_dataset.h"
#include "lockstep/trainer.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"
#include "train/step_graphs.h"

// Steps that are recorded as CUDA graphs and replayed, beside those that are not.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Points {
  std::int64_t count = 70;
  std::int64_t size() const { return count; }
  std::pair<at::Tensor, at::Tensor> get(std::int64_t index) const {
    const at::Tensor x = torch::arange(16, torch::kFloat).add(index).mul(0.7).sin();
    return {x, x.sum().reshape({1})};
  }
};

// With all that a step may change besides parameters: random numbers, and statistics.
torch::nn::Sequential new_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::BatchNorm1d(64),
                               torch::nn::GELU(), torch::nn::Dropout(0.2),
                               torch::nn::Linear(64, 1));
}

constexpr auto kSquaredError = [](auto& model, const auto& batch) {
  return torch::mse_loss(model(batch.first), batch.second);
};

struct Losses : Callback {
  void on_step(const StepReport& report) override {
    values.push_back(report.loss.value());
    norms.push_back(report.grad_norm);
  }
  std::vector<double> values, norms;
};

struct Trained {
  std::vector<double> losses, norms;
  State state;
  int calls = 0;  // of the loss function
};

template <typename Model, typename Data, typename Loss>
Trained run_of(const Model& model, Data&& data, Loss loss, TrainerOptions options) {
  const auto reports = std::make_shared<Losses>();
  options.callbacks = {reports};
  options.log_every = 1;
  options.progress = false;
  fit(model, data, loss, options);
  return {reports->values, reports->norms, module_state(*model)};
}

void expect_same(const Trained& some, const Trained& others) {
  EXPECT_EQ(some.losses, others.losses);
  EXPECT_EQ(some.norms, others.norms);
  for (const auto& [name, tensor] : others.state.tensors) {
    EXPECT_TRUE(tensor.equal(some.state.tensors.at(name))) << name;
  }
}

TrainerOptions net_options(bool graph) {
  return {.epochs = 4,
          .optimizer = AdamWOptions{.lr = 0.01},
          .schedule = CosineSchedule{.total_steps = 36},
          .cuda_graph = graph};
}

template <typename Loss>
Trained net_run(const TrainerOptions& options, Loss loss) {
  int calls = 0;
  Trained found = run_of(
      new_net(), Loader(Points{}, {.batch_size = 8, .shuffle = true}),
      [&](auto& model, const auto& batch) {
        ++calls;
        return loss(model, batch);
      },
      options);
  found.calls = calls;
  return found;
}

Trained net_run(const TrainerOptions& options) {
  return net_run(options, kSquaredError);
}

// Series that can be learned, with some tokens that no loss is taken of.
struct Series {
  std::int64_t size() const { return 24 * 12; }
  TokenBlock get(std::int64_t index) const {
    const at::Tensor all = torch::arange(257) + index % 40;
    at::Tensor labels = all.narrow(0, 1, 256).clone();
    labels.narrow(0, 0, index % 7 + 1).fill_(kIgnoredLabel);
    return {.input = all.narrow(0, 0, 256).clone(), .labels = labels};
  }
};

// Large enough for tiles of our own, whose sums have one order.
Gpt2 new_gpt2() {
  return Gpt2(Gpt2Config{.vocab_size = 1500,
                         .n_positions = 256,
                         .n_embd = 128,
                         .n_layer = 2,
                         .n_head = 2,
                         .embd_pdrop = 0,
                         .attn_pdrop = 0,
                         .resid_pdrop = 0},
              Gpt2Options{.seed = 5});
}

constexpr auto kTokenLoss = [](auto& model, const TokenBlock& batch) {
  const Gpt2Loss loss = model(batch.input, batch.labels);
  return LossSum{.sum = loss.sum, .count = loss.count, .counted = loss.counted};
};

// Where attention is our own all sums of new_gpt2() have one order; cuDNN's backward has none.
void expect_same_losses(const std::vector<double>& some, const std::vector<double>& others) {
  ASSERT_EQ(some.size(), others.size());
  if (at::cuda::getCurrentDeviceProperties()->major == 9) {
    EXPECT_EQ(some, others);
    return;
  }
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_NEAR(some[i], others[i], 1e-3 * others[i]) << i;
  }
}

}  // namespace

// The last batch of each epoch is smaller, and computed as it is.
TEST(CudaGraph, the_trainer_has_the_bits_of_steps_that_are_not_recorded) {
  const Trained plain = net_run(net_options(false)), graphed = net_run(net_options(true));
  EXPECT_EQ(plain.losses.size(), 36U);
  EXPECT_EQ(plain.calls, 36);
  EXPECT_EQ(graphed.calls, 3 + 1 + 4);  // as it is, recorded, the last of each epoch
  expect_same(graphed, plain);

  TrainerOptions with_all = net_options(true);
  with_all.accumulate = 4;
  with_all.clip_grad_norm = 0.5;
  with_all.ema_decay = 0.9;
  with_all.epochs = 12;
  TrainerOptions as_it_is = with_all;
  as_it_is.cuda_graph = false;
  const Trained recorded = net_run(with_all);
  EXPECT_LT(recorded.losses.back(), recorded.losses.front());
  // Two usual steps in each epoch, then one with the batch that is left: three steps as they are,
  // one that is recorded, whose two micro-batches in the middle are one part.
  EXPECT_EQ(recorded.calls, 3 * 4 + 3 + 12);
  expect_same(recorded, net_run(as_it_is));
}

TEST(CudaGraph, a_run_that_was_stopped_goes_on_with_the_same_bits) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, std::int64_t steps) {
    TrainerOptions options = net_options(true);
    options.steps = steps;
    options.snapshots.directory = folder / name;
    return net_run(options);
  };
  const Trained whole = run("whole", 30);
  // In the midst of an epoch, and before its last step, which is not the usual one.
  for (const auto& [stop, calls] : {std::pair{13, 3 + 1 + 2}, {8, 3 + 1 + 3}}) {
    SCOPED_TRACE(stop);
    run(std::to_string(stop), stop);
    const Trained rest = run(std::to_string(stop), 30);
    EXPECT_EQ(rest.losses.size(), static_cast<std::size_t>(30 - stop));
    EXPECT_EQ(rest.calls, calls);
    for (const auto& [name, tensor] : whole.state.tensors) {
      EXPECT_TRUE(tensor.equal(rest.state.tensors.at(name))) << name;
    }
  }
}

// An evaluation before the step that is recorded casts the weights; the optimizer does not.
TEST(CudaGraph, gpt2_computes_with_the_weights_that_any_optimizer_changes) {
  const auto run = [](bool graph) {
    const auto reports = std::make_shared<Losses>();
    TrainerOptions options{.epochs = 3,
                           .optimizer = SGDOptions{.lr = 0.125},
                           .precision = Precision::bf16_autocast,
                           .cuda_graph = graph};
    options.evaluate_every = {.steps = 3};
    options.callbacks = {reports};
    options.log_every = 1;
    options.progress = false;
    Loader data(Series{}, {.batch_size = 24}), held_out(Series{}, {.batch_size = 24});
    Trainer(options).fit(new_gpt2(), data, kTokenLoss, Evaluation{held_out, kTokenLoss});
    return reports->values;
  };
  const std::vector<double> graphed = run(true), plain = run(false);
  ASSERT_EQ(graphed.size(), 36U);
  expect_same_losses(graphed, plain);
  EXPECT_LT(graphed.back(), 0.9 * graphed.front());
}

TEST(CudaGraph, gpt2_counts_its_tokens_on_the_device) {
  const auto run = [](bool graph, double clip) {
    return run_of(new_gpt2(), Loader(Series{}, {.batch_size = 24, .shuffle = true}), kTokenLoss,
                  {.epochs = 3,
                   .optimizer = AdamWOptions{.lr = 1e-3},
                   .clip_grad_norm = clip,
                   .precision = Precision::bf16_autocast,
                   .cuda_graph = graph});
  };
  for (const double clip : {0.0, 1.0}) {
    const Trained graphed = run(true, clip), plain = run(false, clip);
    ASSERT_EQ(graphed.losses.size(), 36U);
    expect_same_losses(graphed.losses, plain.losses);
    EXPECT_LT(graphed.losses.back(), 0.8 * graphed.losses.front());
  }
}

TEST(CudaGraph, tells_of_a_loss_that_waits_for_the_gpu) {
  const auto waits = [](auto& model, const auto& batch) {
    const at::Tensor loss = torch::mse_loss(model(batch.first), batch.second);
    return loss.template item<double>() < 0 ? -loss : loss;
  };
  std::string message;
  try {
    run_of(new_net(), Loader(Points{}, {.batch_size = 10}), waits, net_options(true));
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("cannot be recorded as a CUDA graph"), std::string::npos) << message;
  // And the GPU can be used as before.
  const Trained plain =
      run_of(new_net(), Loader(Points{}, {.batch_size = 10}), kSquaredError, net_options(false));
  EXPECT_TRUE(std::isfinite(plain.losses.back()));
}

TEST(CudaGraph, what_the_host_computes_is_refused) {
  const auto draws = [](auto& model, const auto& batch) {
    const at::Tensor loss = torch::mse_loss(model(batch.first), batch.second);
    return loss * (torch::rand({1}).template item<double>() < 0.5 ? 1 : 2);
  };
  EXPECT_NE(refusal([&] { net_run(net_options(true), draws); }).find("draws random numbers"),
            std::string::npos);
  const auto measures = [](auto& model, const auto& batch) {
    const at::Tensor error = (model(batch.first) - batch.second).square();
    return LossSum{.sum = error.sum(), .count = 8, .metrics = {{"one", {.sum = torch::ones({})}}}};
  };
  EXPECT_NE(refusal([&] { net_run(net_options(true), measures); }).find("is on cpu"),
            std::string::npos);
}

TEST(CudaGraph, waits_for_what_is_replayed_no_longer_than_it_is_told) {
  using namespace std::chrono_literals;
  StepGraphs graphs(c10::Device(c10::kCUDA), {.warm_ups = 1});
  for (int step = 0; step < 3; ++step) {
    graphs.begin_step(StepKind::usual);
    graphs.run("sleep", [] { at::cuda::sleep(1'000'000'000); });  // cycles: about half a second
    EXPECT_FALSE(graphs.await(1ms));
    EXPECT_TRUE(graphs.await(60s));
    graphs.end_step();
  }
}

// What DistributedDataParallel reduces by NCCL is a part of the graph, the update another: a step
// can be given up in between. Batches arrive meanwhile, on streams of their own; micro-batches
// before the last are not reduced.
RANKS_TEST_WITH(CudaGraphOnNccl, reduces_inside_and_updates_apart, {.count = 1, .gpu = true}) {
  World world = init();
  Loader data(Series{}, {.batch_size = 24, .num_workers = 2, .device = world.device()});
  std::int64_t epoch = 0;
  data.begin_epoch(epoch);
  const auto next = [&] {
    auto delivered = data.next();
    if (!delivered) {
      data.begin_epoch(++epoch);
      delivered = data.next();
    }
    return *delivered->batch;
  };
  constexpr int kMicroBatches = 4;
  const at::Tensor ids = torch::zeros({24, 256}, torch::kLong).to(world.device());
  const at::Tensor labels = ids.clone();
  const auto backward = [&](DistributedDataParallel<Gpt2Impl>& ddp, int micro) {
    if (micro == 0) ddp.zero_grad();
    std::optional<NoSync> local;
    if (micro + 1 < kMicroBatches) local.emplace(ddp.engine());
    const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
    const at::Tensor mean = ddp(ids, labels).sum / static_cast<double>(ids.numel());
    mean.backward();
    return mean.detach();
  };
  const DistributedDataParallelOptions how{.bucket_cap_mb = 0.05};

  Gpt2 graphed = new_gpt2(), plain = new_gpt2();
  graphed->to(world.device());
  plain->to(world.device());
  StepGraphs graphs(world.device(), {.warm_ups = 12});
  std::optional<DistributedDataParallel<Gpt2Impl>> in_graph;
  graphs.on_stream([&] { in_graph.emplace(world, graphed.ptr(), how); });
  DistributedDataParallel<Gpt2Impl> as_it_is(world, plain.ptr(), how);
  AdamW of_graphed(named_parameters(*graphed), {.lr = 1e-3});
  AdamW of_plain(named_parameters(*plain), {.lr = 1e-3});
  // Those in the middle are one part: what it leaves is that of the last of them.
  std::map<std::string, at::Tensor> losses;
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    // Given up, on both sides: the first that was to be recorded, and one that was replayed.
    const bool given_up = step == 12 || step == 20;
    const at::Tensor before = graphed->parameters()[0].detach().clone();
    graphs.begin_step(StepKind::usual);
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      const TokenBlock batch = next();
      ids.copy_(batch.input);
      labels.copy_(batch.labels);
      const std::string part = micro == 0                   ? "first"
                               : micro + 1 == kMicroBatches ? "last"
                                                            : "middle";
      graphs.run(part, [&] { losses[part] = backward(*in_graph, micro); });
      last = losses[part].item<double>();
      if (step == 0 && micro == 0) first = last;
      if (given_up) continue;
      EXPECT_NEAR(last, backward(as_it_is, micro).item<double>(), 1e-2 * last) << "step " << step;
    }
    EXPECT_EQ(graphs.is_recorded(), step > 13);
    EXPECT_TRUE(before.equal(graphed->parameters()[0]));
    if (given_up) continue;
    graphs.run("update", [&] { of_graphed.step(); });
    graphs.end_step();
    EXPECT_FALSE(before.equal(graphed->parameters()[0]));
    of_plain.step();
  }
  EXPECT_LT(last, 0.8 * first);
}
