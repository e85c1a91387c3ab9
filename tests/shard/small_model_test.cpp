// A model with so few elements that some ranks get no part of it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/snapshot.h"
#include "lockstep/trainer.h"
#include "tests/core/temporary_folder.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kLastStep = 4;

torch::nn::Linear few_elements() {
  torch::manual_seed(5);
  return torch::nn::Linear(3, 1);
}

enum class Kind { adamw_of_parameters, sgd_of_groups };

std::unique_ptr<Optimizer> optimizer_of(Kind kind, std::vector<NamedParameter> parameters,
                                        std::vector<ParamGroup> groups) {
  if (kind == Kind::adamw_of_parameters) {
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions{.lr = 1e-2});
  }
  return std::make_unique<SGD>(std::move(groups), SGDOptions{.lr = 1e-2, .momentum = 0.9});
}

template <typename Parallel>
double small_step(Parallel& parallel, Optimizer& optimizer, int step, int rank,
                  const std::function<double()>& clip) {
  torch::manual_seed(10 * step + rank);
  const at::Tensor x = torch::randn({5, 3});
  parallel.zero_grad();
  parallel(x).pow(2).mean().backward();
  const double norm = clip();
  optimizer.step();
  return norm;
}

struct SmallRun {
  at::Tensor weight, bias;
  std::vector<double> norms;
};

// With a limit that clips nothing bits do not depend on the order in which a norm is added.
SmallRun small_ddp(World& world, Kind kind, double max_norm) {
  auto model = few_elements();
  DistributedDataParallel ddp(world, model);
  const auto parameters = named_parameters(*model);
  const auto optimizer = optimizer_of(kind, parameters, decay_groups(*model, 0.1));
  SmallRun run;
  for (int step = 0; step < kLastStep; ++step) {
    run.norms.push_back(small_step(ddp, *optimizer, step, world.rank(), [&] {
      return clip_grad_norm(parameters, {.max_norm = max_norm}).item<double>();
    }));
  }
  run.weight = model->weight.detach().clone();
  run.bias = model->bias.detach().clone();
  return run;
}

/// The same in parts, from one step to another.
class SmallShards {
 public:
  SmallShards(World& world, Kind kind, ShardStage stage)
      : world_(world),
        sharded_(world, model_, ShardedOptions{.stage = stage}),
        optimizer_(optimizer_of(kind, sharded_.parameters(), sharded_.decay_groups(0.1))) {}

  void train(int first, int last, double max_norm) {
    for (int step = first; step < last; ++step) {
      run_.norms.push_back(small_step(sharded_, *optimizer_, step, world_.rank(), [&] {
        return sharded_.clip_grad_norm({.max_norm = max_norm}).item<double>();
      }));
    }
  }

  Snapshot snapshot(std::int64_t step) const {
    return {.step = step,
            .parts = {{"model", sharded_.state()},
                      {"optimizer", sharded_.optimizer_state(*optimizer_)}}};
  }
  void load(SnapshotStore& store) {
    const auto snapshot = store.load_newest(sharded_.ranges());
    ASSERT_TRUE(snapshot.has_value());
    sharded_.load_state(snapshot->parts.at("model"));
    sharded_.load_optimizer_state(*optimizer_, snapshot->parts.at("optimizer"));
  }

  SmallRun result() {
    sharded_.with_whole_parameters([&] {
      run_.weight = model_->weight.detach().clone();
      run_.bias = model_->bias.detach().clone();
    });
    return run_;
  }
  std::size_t parts() const { return sharded_.parameters().size(); }

 private:
  World& world_;
  torch::nn::Linear model_ = few_elements();
  ShardedDataParallel<torch::nn::LinearImpl> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  SmallRun run_;
};

const std::vector<ShardStage> kAllStages = {ShardStage::optimizer, ShardStage::gradients,
                                            ShardStage::parameters};

void expect_small_models_have_ddps_bits(World& world) {
  torch::set_num_threads(1);
  for (const Kind kind : {Kind::adamw_of_parameters, Kind::sgd_of_groups}) {
    const SmallRun expected = small_ddp(world, kind, 1e9);
    const SmallRun clipped = small_ddp(world, kind, 0.05);
    EXPECT_FALSE(torch::equal(expected.weight, few_elements()->weight));
    for (const ShardStage stage : kAllStages) {
      SCOPED_TRACE(concat("stage ", static_cast<int>(stage)));
      SmallShards shards(world, kind, stage);
      EXPECT_EQ(shards.parts(), world.rank() < 2 ? 1u : 0u) << "weight and bias are on two ranks";
      shards.train(0, kLastStep, 1e9);
      const SmallRun found = shards.result();
      EXPECT_TRUE(equal_bits(found.weight, expected.weight));
      EXPECT_TRUE(equal_bits(found.bias, expected.bias));

      SmallShards clipping(world, kind, stage);
      clipping.train(0, kLastStep, 0.05);
      const SmallRun near = clipping.result();
      EXPECT_TRUE(torch::allclose(near.weight, clipped.weight, 1e-5, 1e-7));
      for (int step = 0; step < kLastStep; ++step) {
        EXPECT_NEAR(found.norms[step] / expected.norms[step], 1, 1e-6);
        EXPECT_NEAR(near.norms[step] / clipped.norms[step], 1, 1e-5);
      }
    }
  }
}

}  // namespace

RANKS_TEST(SmallModel, ranks_without_a_part_have_ddps_bits, 4) {
  World world = init();
  expect_small_models_have_ddps_bits(world);
}
RANKS_TEST(SmallModel, ranks_without_a_part_have_ddps_bits_over_gloo, 4) {
  World world = init({.backend = "gloo"});
  expect_small_models_have_ddps_bits(world);
}

RANKS_TEST(SmallModel, a_snapshot_with_ranks_that_have_no_part_goes_on, 4) {
  World world = init();
  torch::set_num_threads(1);
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "s", 0);
  const Kind kind = Kind::adamw_of_parameters;
  const SmallRun expected = small_ddp(world, kind, 1e9);
  SnapshotStore store(world, {.directory = folder});
  {
    SmallShards shards(world, kind, ShardStage::parameters);
    shards.train(0, 2, 1e9);
    store.save(shards.snapshot(2));
    store.wait();
    EXPECT_EQ(store.last_error(), "");
  }
  world.barrier();
  for (const ShardStage stage : kAllStages) {
    SmallShards shards(world, kind, stage);
    shards.load(store);
    shards.train(2, kLastStep, 1e9);
    const SmallRun found = shards.result();
    EXPECT_TRUE(equal_bits(found.weight, expected.weight)) << static_cast<int>(stage);
    EXPECT_TRUE(equal_bits(found.bias, expected.bias)) << static_cast<int>(stage);
  }
  // And into a plain run, from the parts of all ranks.
  const Snapshot whole = read_snapshot(folder);
  auto model = few_elements();
  load_module_state(*model, whole.parts.at("model"));
  DistributedDataParallel ddp(world, model);
  AdamW optimizer(named_parameters(*model), {.lr = 1e-2});
  optimizer.load_state(whole.parts.at("optimizer"));
  for (int step = 2; step < kLastStep; ++step) {
    small_step(ddp, optimizer, step, world.rank(), [] { return 0.0; });
  }
  EXPECT_TRUE(equal_bits(model->weight.detach(), expected.weight));
  EXPECT_TRUE(equal_bits(model->bias.detach(), expected.bias));
  world.barrier();
}

RANKS_TEST(SmallModel, a_trainer_takes_it, 4) {
  World world = init();
  torch::set_num_threads(1);
  struct Samples {
    std::int64_t size() const { return 40; }
    std::pair<at::Tensor, at::Tensor> get(std::int64_t index) const {
      const at::Tensor x = torch::arange(3) * 0.1 + 0.01 * static_cast<double>(index);
      return {x, x.sum().reshape({1})};
    }
  };
  const auto squares = [](auto& model, const auto& batch) {
    return LossSum{.sum = torch::mse_loss(model(batch.first), batch.second, torch::Reduction::Sum),
                   .count = static_cast<double>(batch.first.size(0))};
  };
  const auto trained = [&](std::optional<ShardedOptions> shard) {
    auto model = few_elements();
    Loader data(Samples{}, {.batch_size = 2, .shuffle = true, .seed = 4});
    Trainer trainer(world, {.steps = 8, .shard = std::move(shard), .progress = false});
    EXPECT_EQ(trainer.fit(model, data, squares).step, 8);
    return model;
  };
  const auto expected = trained(std::nullopt);
  for (const ShardStage stage : kAllStages) {
    const auto found = trained(ShardedOptions{.stage = stage});
    EXPECT_TRUE(equal_bits(found->weight.detach(), expected->weight.detach()));
    EXPECT_TRUE(equal_bits(found->bias.detach(), expected->bias.detach()));
  }
}
