#include "lockstep/sharded.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/optimizer.h"
#include "shard/flat_layout.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Odd shapes everywhere; blocks that are units, and layers before and after them.
struct Odd : torch::nn::Module {
  Odd() {
    register_module("in", in);
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Sequential(
          torch::nn::Linear(37, 71), torch::nn::Tanh(), torch::nn::Linear(71, 37),
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({37}))));
    }
    register_module("blocks", blocks);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = torch::tanh(in(input));
    for (int i = 0; i < used_blocks; ++i) {
      const auto block = blocks[i];
      x = unit(*block, x, [&](const at::Tensor& x) {
        return x + block->as<torch::nn::Sequential>()->forward(x);
      });
      x += 0.5;  // a model may go on in place
    }
    return out(x);
  }
  torch::nn::Linear in{13, 37}, out{37, 5};
  torch::nn::ModuleList blocks;
  int used_blocks = 3;
};

std::shared_ptr<Odd> make_odd() {
  torch::manual_seed(3);
  return std::make_shared<Odd>();
}

at::Tensor batch_of(int step, int rank, int micro = 0) {
  torch::manual_seed(1000 + 100 * step + 10 * micro + rank);
  return torch::randn({6, 13});
}

constexpr int kSteps = 4;
constexpr double kDecay = 0.1;

struct Trained {
  std::vector<float> losses;
  std::map<std::string, at::Tensor> weights;
};

template <typename Model>
std::map<std::string, at::Tensor> weights_of(const Model& model) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& each : model.named_parameters())
    weights[each.key()] = each.value().detach().clone();
  return weights;
}

// One loop for both kinds: `accumulate` micro-batches a step, all but the last without a reduction.
template <typename Parallel, typename Optim>
std::vector<float> train(Parallel& parallel, Optim& optimizer, int rank, int accumulate) {
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    parallel.zero_grad();
    float loss_of_step = 0;
    const auto one = [&](int micro) {
      const at::Tensor loss = parallel(batch_of(step, rank, micro)).pow(2).mean();
      loss.backward();
      loss_of_step += loss.template item<float>();
    };
    {
      const auto quiet = parallel.no_sync();
      for (int micro = 0; micro + 1 < accumulate; ++micro) one(micro);
    }
    one(accumulate - 1);
    optimizer.step();
    losses.push_back(loss_of_step);
    const torch::NoGradGuard no_grad;  // an evaluation in between changes nothing
    losses.push_back(parallel(batch_of(99, rank)).sum().template item<float>());
  }
  return losses;
}

Trained train_ddp(World& world, int accumulate) {
  auto model = make_odd();
  DistributedDataParallel<Odd> ddp(world, model);
  AdamW optimizer(decay_groups(*model, kDecay), {.lr = 1e-2});
  Trained result;
  result.losses = train(ddp, optimizer, world.rank(), accumulate);
  result.weights = weights_of(*model);
  return result;
}

Trained train_sharded(World& world, const ShardedOptions& options, int accumulate) {
  auto model = make_odd();
  ShardedDataParallel<Odd> sharded(world, model, options);
  AdamW optimizer(sharded.decay_groups(kDecay), {.lr = 1e-2});
  Trained result;
  result.losses = train(sharded, optimizer, world.rank(), accumulate);
  sharded.with_whole_parameters([&] { result.weights = weights_of(*model); });
  return result;
}

void expect_same(const Trained& expected, const Trained& found, const std::string& what) {
  EXPECT_EQ(expected.losses, found.losses) << what;
  ASSERT_EQ(expected.weights.size(), found.weights.size()) << what;
  for (const auto& [name, weight] : expected.weights) {
    EXPECT_TRUE(equal_bits(weight, found.weights.at(name))) << what << ": " << name;
  }
}

void expect_ddps_bits(const InitOptions& init_options = {}, int replicas = 1) {
  World world = init(init_options);
  torch::set_num_threads(1);
  const auto train_sharded = [replicas](World& world, ShardedOptions options, int accumulate) {
    options.replicas = replicas;
    return ::train_sharded(world, options, accumulate);
  };
  for (const int accumulate : {1, 3}) {
    const Trained expected = train_ddp(world, accumulate);
    for (const ShardStage stage :
         {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
      const std::string what = concat("stage ", static_cast<int>(stage), ", ", accumulate);
      expect_same(expected,
                  train_sharded(world, {.stage = stage, .units = {"blocks.*"}}, accumulate), what);
      expect_same(expected, train_sharded(world, {.stage = stage}, accumulate),
                  what + ", no units");
    }
    expect_same(
        expected,
        train_sharded(world, {.units = {"blocks.0", "blocks.2"}, .prefetch = 0}, accumulate),
        "two units, no prefetch");
    expect_same(
        expected,
        train_sharded(world, {.units = {"blocks.*"}, .prefetch = 2, .reshard_after_forward = false},
                      accumulate),
        "kept until backward");
    // "in" is not marked in forward, which only the last stage minds.
    expect_same(expected,
                train_sharded(world, {.stage = ShardStage::gradients, .units = {"blocks.*", "in"}},
                              accumulate),
                "one unit not marked");
  }
}

}  // namespace

RANKS_TEST(Sharded, one_rank_has_ddps_bits, 1) {
  expect_ddps_bits();
}
RANKS_TEST(Sharded, two_ranks_have_ddps_bits, 2) {
  expect_ddps_bits();
}
RANKS_TEST(Sharded, three_ranks_have_ddps_bits, 3) {
  expect_ddps_bits();
}
RANKS_TEST(Sharded, four_ranks_have_ddps_bits, 4) {
  expect_ddps_bits();
}
RANKS_TEST(Sharded, three_ranks_over_gloo_have_ddps_bits, 3) {
  expect_ddps_bits({.backend = "gloo"});
}

RANKS_TEST(Sharded, four_ranks_in_two_copies_have_ddps_bits, 4) {
  expect_ddps_bits({}, /*replicas=*/2);
}
RANKS_TEST(Sharded, two_ranks_that_hold_everything_have_ddps_bits, 2) {
  expect_ddps_bits({}, /*replicas=*/2);
}
RANKS_TEST(Sharded, four_ranks_in_two_copies_over_gloo_have_ddps_bits, 4) {
  expect_ddps_bits({.backend = "gloo"}, /*replicas=*/2);
}

// Within a copy parameters, over all ranks gradients, and between holders what they have added.
RANKS_TEST(Sharded, replicas_send_what_two_levels_of_reduction_would, 4) {
  World world = init();
  auto model = make_odd();
  ShardedDataParallel<Odd> sharded(
      world, model, {.stage = ShardStage::gradients, .units = {"blocks.*"}, .replicas = 2});
  AdamW optimizer(sharded.parameters(), {.lr = 1e-2});
  sharded(batch_of(0, world.rank())).sum().backward();
  optimizer.step();
  const ShardedTraffic before = sharded.traffic();
  sharded.zero_grad();
  sharded(batch_of(1, world.rank())).sum().backward();
  const ShardedTraffic after = sharded.traffic();
  // What the buffers hold, gaps included: with 4 ranks a quarter of it is a share.
  std::int64_t share = 0;
  const auto add = [&](const std::vector<std::int64_t>& sizes) {
    share += FlatLayout(sizes, 4, 2).share_length() * 4;
  };
  for (int block = 0; block < 3; ++block) add({71 * 37, 71, 37 * 71, 37, 37, 37});
  add({13 * 37, 37, 37 * 5, 5});
  EXPECT_EQ(after.parameters - before.parameters, 2 * share) << "one part, to one other rank";
  // A reduce-scatter of halves in a copy is 2 shares; an all-reduce of a part between two is 2.
  EXPECT_EQ(after.gradients - before.gradients, 4 * share);
}

RANKS_TEST(Sharded, replicas_are_clipped_by_one_norm, 4) {
  World world = init();
  torch::set_num_threads(1);
  auto plain = make_odd();
  ShardedDataParallel<Odd> parts(world, plain, {.units = {"blocks.*"}});
  ShardedDataParallel<Odd> copies(world, make_odd(), {.units = {"blocks.*"}, .replicas = 2});
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    parts.zero_grad();
    copies.zero_grad();
    parts(batch_of(0, world.rank())).pow(2).sum().backward();
    copies(batch_of(0, world.rank())).pow(2).sum().backward();
    const ClipGradOptions options{.max_norm = 0.5, .norm_type = norm_type, .scale = 0.25};
    const auto expected = parts.clip_grad_norm(options).item<float>();
    const auto found = copies.clip_grad_norm(options).item<float>();
    EXPECT_NEAR(found / expected, 1.0, 1e-5);
    for (const nlohmann::json& each : world.group().all_gather_json(found)) {
      EXPECT_EQ(each.get<float>(), found) << "a copy would leave the other";
    }
  }
}

RANKS_TEST(Sharded, replicas_that_do_not_divide_the_ranks_are_refused, 3) {
  World world = init();
  const auto refused = [&](auto& place, int replicas) {
    return refusal(
        [&] { ShardedDataParallel<Odd> sharded(place, make_odd(), {.replicas = replicas}); });
  };
  EXPECT_NE(refused(world, 2).find("replicas is 2; the number of ranks, 3, must be a multiple"),
            std::string::npos)
      << refused(world, 2);
  EXPECT_NE(refused(world, 0).find("replicas is 0"), std::string::npos);
  EXPECT_NE(refused(world.group(), 3).find("replicas is 3, which needs groups of the world"),
            std::string::npos);
}

RANKS_TEST(Sharded, memory_is_what_the_stage_promises, 4) {
  World world = init();
  const auto most = [&](ShardStage stage) {
    auto model = make_odd();
    ShardedDataParallel<Odd> sharded(world, model, {.stage = stage, .units = {"blocks.*"}});
    AdamW optimizer(sharded.parameters(), {.lr = 1e-2});
    train(sharded, optimizer, world.rank(), 1);
    const ShardedMemory between = sharded.memory();
    if (stage == ShardStage::parameters) {
      std::int64_t own = 0;
      for (const auto& piece : sharded.parameters()) own += piece.tensor.numel();
      EXPECT_LT(between.parameters, 4 * own + 4 * 64 * 4 * 5) << "only parts between steps";
    }
    return between;
  };
  const auto first = most(ShardStage::optimizer), second = most(ShardStage::gradients),
             third = most(ShardStage::parameters);
  EXPECT_EQ(first.most_parameters, second.most_parameters);
  EXPECT_GT(first.most_gradients, second.most_gradients);
  EXPECT_LT(third.most_parameters, second.most_parameters);
  EXPECT_LT(second.gradients, first.gradients) << "whole gradients do not stay";
}

RANKS_TEST(Sharded, gradients_are_clipped_by_their_common_norm, 3) {
  World world = init();
  torch::set_num_threads(1);
  auto plain = make_odd(), parted = make_odd();
  DistributedDataParallel<Odd> ddp(world, plain);
  ShardedDataParallel<Odd> sharded(world, parted, {.units = {"blocks.*"}});
  for (const double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    ddp.zero_grad();
    sharded.zero_grad();
    ddp(batch_of(0, world.rank())).pow(2).sum().backward();
    sharded(batch_of(0, world.rank())).pow(2).sum().backward();
    const ClipGradOptions options{.max_norm = 0.5, .norm_type = norm_type, .scale = 0.25};
    const double expected = clip_grad_norm(named_parameters(*plain), options).item<double>();
    EXPECT_NEAR(sharded.clip_grad_norm(options).item<double>() / expected, 1.0, 1e-5);
    std::map<std::string, at::Tensor> whole;
    for (const auto& each : plain->named_parameters()) whole[each.key()] = each.value().grad();
    for (const auto& piece : sharded.parameters()) {
      EXPECT_LE(piece.tensor.grad().abs().max().item<double>(),
                whole.at(piece.name).abs().max().item<double>() * (1 + 1e-5));
    }
    sharded.clip_grad_norm({.max_norm = 1e9, .norm_type = norm_type});
  }
}

RANKS_TEST(Sharded, a_unit_that_is_not_used_gets_zeros, 2) {
  World world = init();
  auto model = make_odd();
  model->used_blocks = 2;
  ShardedDataParallel<Odd> sharded(world, model, {.units = {"blocks.*"}});
  for (int step = 0; step < 2; ++step) {
    sharded.zero_grad();
    sharded(batch_of(step, world.rank())).sum().backward();
    for (const auto& piece : sharded.parameters()) {
      ASSERT_TRUE(piece.tensor.grad().defined()) << piece.name;
      const bool zero = piece.tensor.grad().eq(0).all().item<bool>();
      EXPECT_EQ(zero, piece.name.starts_with("blocks.2.")) << piece.name;
    }
  }
}

RANKS_TEST(Sharded, an_exception_in_forward_leaves_it_usable, 2) {
  World world = init();
  auto model = make_odd();
  ShardedDataParallel<Odd> sharded(world, model, {.units = {"blocks.*"}});
  EXPECT_ANY_THROW(sharded(torch::randn({6, 14})));
  sharded(batch_of(0, world.rank())).sum().backward();
  EXPECT_TRUE(sharded.parameters().front().tensor.grad().defined());
  EXPECT_EQ(ForwardUnits::current(), nullptr);
}

RANKS_TEST(Sharded, a_unit_that_is_not_marked_is_named, 1) {
  World world = init();
  ShardedDataParallel<Odd> sharded(world, make_odd(), {.units = {"in"}});
  ::testing::internal::CaptureStderr();
  EXPECT_ANY_THROW(sharded(batch_of(0, 0)));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("passed 'in'; the parameters of a unit"), std::string::npos) << said;
}

RANKS_TEST(Sharded, units_that_do_not_fit_are_refused, 1) {
  World world = init();
  const auto refused = [&](const ShardedOptions& options) {
    return refusal([&] { ShardedDataParallel<Odd> sharded(world, make_odd(), options); });
  };
  EXPECT_NE(refused({.units = {"layers.*"}}).find("'layers.*'"), std::string::npos);
  EXPECT_NE(refused({.units = {"blocks", "blocks.1"}}).find("'blocks.1' is within 'blocks'"),
            std::string::npos);
  EXPECT_NE(refused({.units = {"blocks.0.1"}}).find("no parameter of its own"), std::string::npos);
  EXPECT_NE(refused({.prefetch = -1}).find("prefetch is -1"), std::string::npos);
}
