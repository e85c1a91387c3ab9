// Parts in float32, while whole parameters and gradients are in narrower types.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Uneven : torch::nn::Module {
  Uneven() {
    register_module("in", in);
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(
          torch::nn::Linear(29, 67), torch::nn::Tanh(), torch::nn::Linear(67, 29),
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({29}))));
    }
    register_module("blocks", blocks);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = torch::tanh(in(input));
    for (const auto& block : *blocks) {
      x = unit(*block, x, [&](const at::Tensor& x) {
        return x + block->as<torch::nn::Sequential>()->forward(x);
      });
    }
    return out(x);
  }
  torch::nn::Linear in{11, 29}, out{29, 5};
  torch::nn::ModuleList blocks;
};

std::shared_ptr<Uneven> make_uneven() {
  torch::manual_seed(7);
  return std::make_shared<Uneven>();
}

struct Types {
  at::ScalarType gather, reduce;
};

struct Schedule {
  int accumulate = 1;
  bool quiet = false;  // whether all micro-batches but the last are not reduced
};

constexpr int kMixedSteps = 2;
constexpr double kMixedDecay = 0.1;

at::Tensor micro_batch(int step, int rank, int micro, at::ScalarType type) {
  torch::manual_seed(5000 + 100 * step + 10 * micro + rank);
  return torch::randn({6, 11}).to(type);
}

using Weights = std::map<std::string, at::Tensor>;

Weights weights_of_uneven(const Uneven& model) {
  Weights weights;
  for (const auto& each : model.named_parameters()) {
    weights[each.key()] = each.value().detach().clone();
  }
  return weights;
}

// The mean over ranks in their order: added in float, rounded once.
at::Tensor mean_over_ranks(World& world, const at::Tensor& gradient) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world.world_size(); ++rank) all.push_back(at::empty_like(gradient));
  world.group().all_gather(all, gradient.contiguous());
  at::Tensor sum = all[0].to(at::kFloat);
  for (std::size_t rank = 1; rank < all.size(); ++rank) sum = sum + all[rank].to(at::kFloat);
  return (sum / world.world_size()).to(gradient.scalar_type());
}

// What ShardedDataParallel has to give, with everything on every rank.
Weights train_plainly(World& world, const Types& types, const Schedule& schedule) {
  const auto master = make_uneven(), working = make_uneven();
  working->to(types.gather);
  AdamW optimizer(decay_groups(*master, kMixedDecay), {.lr = 1e-2});
  auto masters = master->named_parameters(), workers = working->named_parameters();
  for (int step = 0; step < kMixedSteps; ++step) {
    optimizer.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      for (auto& each : workers) each.value().copy_(masters[each.key()]);
    }
    Weights sums;
    for (int micro = 0; micro < schedule.accumulate; ++micro) {
      working->zero_grad();
      const at::Tensor batch = micro_batch(step, world.rank(), micro, types.gather);
      working->forward(batch).to(at::kFloat).pow(2).mean().backward();
      for (auto& each : workers) {
        at::Tensor& sum = sums[each.key()];
        const at::Tensor found = each.value().grad().to(at::kFloat);
        sum = sum.defined() ? sum + found : found;
      }
      if (schedule.quiet && micro + 1 < schedule.accumulate) continue;
      for (auto& each : masters) {
        const at::Tensor mean =
            mean_over_ranks(world, sums.at(each.key()).to(types.reduce)).to(at::kFloat);
        at::Tensor& gradient = each.value().mutable_grad();
        gradient = gradient.defined() ? gradient + mean : mean;
      }
      sums.clear();
    }
    optimizer.step();
  }
  return weights_of_uneven(*master);
}

Weights train_in_parts(World& world, const ShardedOptions& options, const Schedule& schedule,
                       ShardedMemory* memory = nullptr) {
  const auto model = make_uneven();
  ShardedDataParallel<Uneven> sharded(world, model, options);
  AdamW optimizer(sharded.decay_groups(kMixedDecay), {.lr = 1e-2});
  const at::ScalarType type = options.gather_type.value_or(at::kFloat);
  for (int step = 0; step < kMixedSteps; ++step) {
    sharded.zero_grad();
    for (int micro = 0; micro < schedule.accumulate; ++micro) {
      sharded.engine().set_requires_sync(!schedule.quiet || micro + 1 == schedule.accumulate);
      sharded(micro_batch(step, world.rank(), micro, type)).to(at::kFloat).pow(2).mean().backward();
    }
    optimizer.step();
    for (const auto& piece : sharded.parameters()) {
      EXPECT_EQ(piece.tensor.scalar_type(), at::kFloat);
    }
  }
  if (memory != nullptr) *memory = sharded.memory();
  Weights weights;
  sharded.with_whole_parameters([&] { weights = weights_of_uneven(*model); });
  for (const auto& each : model->parameters()) EXPECT_EQ(each.scalar_type(), type);
  return weights;
}

void expect_plain_bits(const InitOptions& init_options = {}, int replicas = 1) {
  World world = init(init_options);
  torch::set_num_threads(1);
  const std::vector<Types> all_types = {{at::kBFloat16, at::kBFloat16},
                                        {at::kBFloat16, at::kFloat},
                                        {at::kFloat, at::kBFloat16},
                                        {at::kHalf, at::kHalf}};
  const std::vector<Schedule> schedules = {{.accumulate = 2, .quiet = true}, {.accumulate = 2}, {}};
  for (const Types& types : all_types) {
    for (const Schedule& schedule : schedules) {
      // How micro-batches are added does not depend on which narrow type it is.
      if (schedule.accumulate > 1 && types.gather != at::kBFloat16) continue;
      const Weights expected = train_plainly(world, types, schedule);
      for (const int stage : {1, 2, 3}) {
        const Weights found = train_in_parts(world,
                                             {.stage = static_cast<ShardStage>(stage),
                                              .units = {"blocks.*"},
                                              .replicas = replicas,
                                              .gather_type = types.gather,
                                              .reduce_type = types.reduce},
                                             schedule);
        for (const auto& [name, weight] : expected) {
          EXPECT_TRUE(equal_bits(weight, found.at(name)))
              << name << ", stage " << stage << ", gather " << types.gather << ", reduce "
              << types.reduce << ", micro-batches " << schedule.accumulate << ", quiet "
              << schedule.quiet;
        }
      }
    }
  }
}

}  // namespace

RANKS_TEST(MixedTypes, one_rank_has_the_bits_of_a_plain_loop, 1) {
  expect_plain_bits();
}
RANKS_TEST(MixedTypes, two_ranks_have_the_bits_of_a_plain_loop, 2) {
  expect_plain_bits();
}
RANKS_TEST(MixedTypes, three_ranks_over_gloo_have_the_bits_of_a_plain_loop, 3) {
  expect_plain_bits({.backend = "gloo"});
}
RANKS_TEST(MixedTypes, four_ranks_have_the_bits_of_a_plain_loop, 4) {
  expect_plain_bits();
}

RANKS_TEST(MixedTypes, four_ranks_in_two_copies_have_the_bits_of_a_plain_loop, 4) {
  expect_plain_bits({}, /*replicas=*/2);
}

RANKS_TEST(MixedTypes, memory_and_traffic_follow_the_types, 2) {
  World world = init();
  ShardedMemory wide, narrow;
  train_in_parts(world, {.units = {"blocks.*"}}, {}, &wide);
  train_in_parts(world, {.units = {"blocks.*"}, .gather_type = at::kBFloat16}, {}, &narrow);
  EXPECT_EQ(wide.parameters, narrow.parameters) << "parts are float32 in both";
  EXPECT_LT(narrow.most_parameters - narrow.parameters,
            (wide.most_parameters - wide.parameters) * 0.8);
  EXPECT_LT(narrow.most_gradients, wide.most_gradients);

  const auto sent = [&](const ShardedOptions& options) {
    ShardedDataParallel<Uneven> sharded(world, make_uneven(), options);
    const at::ScalarType type = options.gather_type.value_or(at::kFloat);
    sharded(micro_batch(0, world.rank(), 0, type)).sum().backward();
    return sharded.traffic();
  };
  const ShardedTraffic floats = sent({.units = {"blocks.*"}});
  const ShardedTraffic halves = sent({.units = {"blocks.*"}, .gather_type = at::kHalf});
  EXPECT_EQ(floats.parameters, 2 * halves.parameters);
  EXPECT_EQ(floats.gradients, 2 * halves.gradients);
}

RANKS_TEST(MixedTypes, gpt2_learns_alike_in_all_stages, 2) {
  World world = init();
  torch::set_num_threads(1);
  Gpt2Config config;
  config.vocab_size = 61;
  config.n_positions = 16;
  config.n_embd = 32;
  config.n_layer = 2;
  config.n_head = 2;
  const auto losses_of = [&](const ShardedOptions& options) {
    Gpt2 model(config, {.seed = 5});
    model->set_dropout(0);
    ShardedDataParallel sharded(world, model, options);
    AdamW optimizer(sharded.decay_groups(kMixedDecay), {.lr = 1e-3});
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      torch::manual_seed(world.rank());
      const at::Tensor ids = torch::randint(61, {2, 16}, torch::kLong);
      sharded.zero_grad();
      const Gpt2Loss loss = sharded(ids, ids.roll(-1, 1));
      (loss.sum / loss.count).backward();
      sharded.clip_grad_norm({.max_norm = 1});
      optimizer.step();
      losses.push_back(loss.sum.item<double>() / loss.count);
    }
    return losses;
  };
  const auto narrow = [&](ShardStage stage) {
    return losses_of({.stage = stage, .units = {"h.*"}, .gather_type = at::kBFloat16});
  };
  const auto expected = losses_of({.units = {"h.*"}});
  const auto found = narrow(ShardStage::parameters);
  EXPECT_EQ(found, narrow(ShardStage::optimizer));
  EXPECT_EQ(found, narrow(ShardStage::gradients));
  EXPECT_LT(found.back(), found.front());
  EXPECT_NEAR(found.back(), expected.back(), 0.05);
}

RANKS_TEST(MixedTypes, on_the_cpu_offloading_changes_nothing, 2) {
  World world = init();
  const Weights expected = train_in_parts(world, {.units = {"blocks.*"}}, {});
  const Weights found =
      train_in_parts(world, {.units = {"blocks.*"}, .offload_optimizer = true}, {});
  for (const auto& [name, weight] : expected) EXPECT_TRUE(equal_bits(weight, found.at(name)));
}

RANKS_TEST(MixedTypes, types_without_gradients_are_refused, 1) {
  World world = init();
  try {
    ShardedDataParallel<Uneven> sharded(world, make_uneven(), {.gather_type = at::kLong});
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "ShardedDataParallel: gather_type is Long; it must be float32, float64, bfloat16 "
                 "or float16");
  }
}
