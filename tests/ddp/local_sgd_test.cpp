#include "lockstep/local_sgd.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/state.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Ranks 0 and 1, ranks 2 and 3.
ProcessGroup pair_of(World& world) {
  ProcessGroup low = world.new_group({.ranks = {0, 1}});
  ProcessGroup high = world.new_group({.ranks = {2, 3}});
  return world.rank() < 2 ? low : high;
}

float gradient_of_step(DistributedDataParallel<torch::nn::LinearImpl>& ddp, World& world) {
  ddp.zero_grad();
  ddp(torch::full({1, 1}, 1.0 + world.rank())).sum().backward();
  return ddp.module().weight.grad().item<float>();
}

void move_alone(torch::nn::Module& model, int step, int rank) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + rank);
    parameter.add_(torch::randn(parameter.sizes(), generator), 0.1);
  }
}

}  // namespace

RANKS_TEST(LocalSGD, gradients_are_reduced_globally_then_within_subgroups, 4) {
  World world = init();
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  DistributedDataParallel ddp(world, model);
  PostLocalSGD local(world, pair_of(world), {.start_localSGD_iter = 2});
  ddp.register_comm_hook(local.hook());
  const float global = 2.5, within = world.rank() < 2 ? 1.5f : 3.5f;
  std::vector<float> gradients;
  for (int step = 0; step < 4; ++step) gradients.push_back(gradient_of_step(ddp, world));
  EXPECT_EQ(gradients, (std::vector<float>{global, global, within, within}));

  torch::nn::Linear second(torch::nn::LinearOptions(1, 1).bias(false));
  DistributedDataParallel ddp_again(world, second);
  PostLocalSGD alone(world, {}, {.start_localSGD_iter = 2, .post_local_gradient_allreduce = false});
  alone.load_state(local.state());  // goes on where the other is
  ddp_again.register_comm_hook(alone.hook());
  EXPECT_EQ(gradient_of_step(ddp_again, world), 1.0f + world.rank());
  EXPECT_THROW(PostLocalSGD(world, {}, {}), InvalidArgument);
}

RANKS_TEST(LocalSGD, an_averager_averages_every_so_many_steps, 2) {
  World world = init();
  torch::nn::Linear model(2, 2);
  PeriodicModelAverager averager(world, {.period = 3, .warmup_steps = 2});
  for (auto& parameter : model->parameters())
    parameter.mutable_grad() = torch::ones_like(parameter);
  std::vector<bool> averaged;
  for (int step = 0; step < 9; ++step) {
    move_alone(*model, step, world.rank());
    averaged.push_back(averager.average_parameters(model->parameters()));
    EXPECT_EQ(equal_on_all_ranks(world, model->weight), averaged.back()) << step;
  }
  EXPECT_EQ(averaged,
            (std::vector<bool>{false, false, true, false, false, true, false, false, true}));
  EXPECT_THROW(PeriodicModelAverager(world, {.period = 0}), InvalidArgument);
}

RANKS_TEST(LocalSGD, outer_steps_are_those_of_sgd_on_what_the_ranks_have_moved, 2) {
  World world = init();
  torch::manual_seed(3);
  torch::nn::Linear model(3, 2), reference(3, 2), resumed(3, 2);
  {
    const torch::NoGradGuard no_grad;
    reference->weight.copy_(model->weight);
    reference->bias.copy_(model->bias);
  }
  torch::optim::SGD sgd(reference->parameters(),
                        torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  OuterOptimizer outer(world, *model, {.every = 4});
  std::optional<OuterOptimizer> again;
  for (int step = 0; step < 12; ++step) {
    move_alone(*model, step, world.rank());
    if (again) move_alone(*resumed, step, world.rank());
    at::Tensor mean = model->weight.detach() / 2;
    world.group().all_reduce(mean);
    const bool outer_step = outer.step();
    EXPECT_EQ(outer_step, step % 4 == 3);
    if (again) {
      EXPECT_EQ(again->step(), outer_step);
    }
    if (!outer_step) continue;
    reference->weight.mutable_grad() = reference->weight.detach() - mean;
    reference->bias.mutable_grad() = torch::zeros_like(reference->bias);
    sgd.step();
    EXPECT_TRUE(torch::allclose(model->weight, reference->weight, 1e-5, 1e-6)) << step;
    EXPECT_TRUE(equal_on_all_ranks(world, model->weight));
    if (again) {
      EXPECT_TRUE(equal_bits(resumed->weight.detach(), model->weight.detach())) << step;
    } else {  // a second run that goes on from the state of the first
      const torch::NoGradGuard no_grad;
      resumed->weight.copy_(model->weight);
      resumed->bias.copy_(model->bias);
      again.emplace(world, *resumed, OuterOptimizerOptions{.every = 4});
      again->load_state(outer.state());
    }
  }
  EXPECT_THROW(OuterOptimizer(world, *model, {.every = 0}), InvalidArgument);
}
