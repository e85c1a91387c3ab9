#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "lockstep/comm_hook.h"
#include "lockstep/ddp.h"
#include "lockstep/optimizer.h"
#include "optim/step_in_backward.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// A value that bfloat16 and float16 round differently.
constexpr double kOdd = 1.0009765625;  // 1 + 2^-10

at::Tensor gradient_with(World& world, CommHook hook, Reduction reduction) {
  torch::nn::Linear model(2, 2);
  DistributedDataParallel ddp(world, model, {.reduction = reduction});
  ddp.register_comm_hook(hook);
  EXPECT_THROW(ddp.register_comm_hook(hook), InvalidArgument);
  ddp(torch::full({1, 2}, kOdd)).sum().backward();
  return model->weight.grad().clone();
}

}  // namespace

RANKS_TEST(CommHooks, compress_what_travels, 2) {
  World world = init();
  for (const auto reduction : {Reduction::ordered, Reduction::native}) {
    EXPECT_TRUE(equal_bits(gradient_with(world, CommHook::allreduce, reduction),
                           torch::full({2, 2}, kOdd)));
    EXPECT_TRUE(equal_bits(gradient_with(world, CommHook::fp16_compress, reduction),
                           torch::full({2, 2}, kOdd)));
    EXPECT_TRUE(
        equal_bits(gradient_with(world, CommHook::bf16_compress, reduction), torch::ones({2, 2})));
  }
}

RANKS_TEST(CommHooks, a_function_of_the_user_decides, 2) {
  World world = init();
  for (const auto reduction : {Reduction::ordered, Reduction::native}) {
    auto model = std::make_shared<Wide>();
    DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.1, .reduction = reduction});
    int calls = 0;
    ddp.register_comm_hook([&](c10d::GradBucket& bucket) {
      ++calls;
      auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
      future->markCompleted(torch::full_like(bucket.getBuffer(), 42));
      return future;
    });
    for (int step = 0; step < 2; ++step) ddp(torch::ones({1, 200})).sum().backward();
    EXPECT_GT(calls, 3);
    for (const auto& parameter : model->parameters()) {
      EXPECT_TRUE((parameter.grad() == 42).all().item<bool>());
    }
  }
}

RANKS_TEST(CommHooks, an_error_of_a_hook_reaches_the_caller_of_backward, 2) {
  World world = init();
  torch::nn::Linear model(2, 2);
  DistributedDataParallel ddp(world, model);
  ddp.register_comm_hook(
      CommHookFunction([](c10d::GradBucket&) -> c10::intrusive_ptr<c10::ivalue::Future> {
        throw Error("no more paper");
      }));
  EXPECT_THROW(ddp(torch::ones({1, 2})).sum().backward(), Error);
}

namespace {

void descend(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.01);
  }
}

}  // namespace

// Its gradients are this rank's alone until all buckets are reduced.
RANKS_TEST(StepInBackward, refuses_parameters_of_distributed_data_parallel, 2) {
  World world = init();
  torch::nn::Linear model(2, 2);
  SGD optimizer(named_parameters(*model), {});
  StepInBackward updates(optimizer);
  updates.backward(model(torch::ones({1, 2})).sum());
  const DistributedDataParallel ddp(world, model);
  EXPECT_EQ(refusal([&] {
              updates.backward(model(torch::ones({1, 2})).sum());
            }),
            "StepInBackward: parameter weight belongs to DistributedDataParallel, whose gradients "
            "are complete after backward only; use Optimizer::step()");
}

RANKS_TEST(Join, ranks_with_less_input_shadow_the_others, 3) {
  World world = init();
  for (const auto reduction : {Reduction::ordered, Reduction::native}) {
    for (const bool initial : {true, false}) {
      auto model = std::make_shared<Normed>();
      DistributedDataParallel ddp(world, model, {.reduction = reduction});
      std::vector<float> gradients;
      ddp.join(
          [&] {
            for (int step = 0; step < 2 + world.rank(); ++step) {
              ddp.zero_grad();
              ddp(torch::ones({4, 4})).sum().backward();
              gradients.push_back(model->linear->bias.grad()[0].item<float>());
              descend(*model);
            }
          },
          {.divide_by_initial_world_size = initial});
      // Each rank's own gradient is 4. Steps 0 and 1 have three ranks, step 2 has two, step 3 one.
      const std::vector<float> means =
          initial ? std::vector<float>{4, 4, 8 / 3.0f, 4 / 3.0f} : std::vector<float>{4, 4, 4, 4};
      ASSERT_EQ(gradients.size(), 2u + world.rank());
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_FLOAT_EQ(gradients[i], means[i]) << i;
      }
      // Rank 2 worked to the end; its model goes to all.
      EXPECT_TRUE(equal_on_all_ranks(world, model->norm->running_mean));
      EXPECT_TRUE(equal_on_all_ranks(world, model->linear->bias));
    }
  }
}

RANKS_TEST(Join, a_rank_without_input_adds_up_its_shard_with_the_others_divisor, 3) {
  World world = init();
  torch::nn::Linear model(100, 100);  // too large to be exchanged whole: every rank adds a shard
  DistributedDataParallel ddp(world, model, {.reduction = Reduction::ordered});
  ddp.join(
      [&] {
        for (int step = 0; step < 1 + world.rank(); ++step) {
          ddp.zero_grad();
          ddp(torch::full({1, 100}, 2.0)).sum().backward();
          EXPECT_TRUE(equal_bits(model->weight.grad(), torch::full({100, 100}, 2.0))) << step;
        }
      },
      {.divide_by_initial_world_size = false});
}

RANKS_TEST(Join, buckets_are_shared_while_a_rank_has_no_input_and_after, 2) {
  World world = init();
  torch::nn::Linear model(300, 300);  // its bucket moves to shared memory with the second step
  DistributedDataParallel ddp(world, model, {.reduction = Reduction::ordered});
  const auto gradients_after = [&](double value) {
    ddp.zero_grad();
    ddp(torch::full({1, 300}, value)).sum().backward();
    return model->weight.grad();
  };
  ddp.join(
      [&] {
        for (int step = 0; step < 1 + 2 * world.rank(); ++step) {
          EXPECT_TRUE(equal_bits(gradients_after(2), torch::full({300, 300}, 2.0))) << step;
        }
      },
      {.divide_by_initial_world_size = false});
  for (int step = 0; step < 2; ++step) {
    const at::Tensor mean = gradients_after(world.rank() + 1);
    EXPECT_TRUE(equal_bits(mean, torch::full({300, 300}, 1.5))) << step;
  }
}

RANKS_TEST(Join, accumulation_and_unused_parameters_are_shadowed_too, 2) {
  World world = init();
  auto model = std::make_shared<Branches>();
  DistributedDataParallel ddp(world, model, {.find_unused_parameters = true});
  ddp.join([&] {
    for (int step = 0; step < 2 + 2 * world.rank(); ++step) {
      std::optional<NoSync> guard;
      if (step % 2 == 0) guard.emplace(ddp.engine());
      ddp(torch::ones({1, 4}), step < 2).sum().backward();
      if (step % 2 == 1) descend(*model);
    }
  });
  EXPECT_TRUE(equal_on_all_ranks(world, model->left->weight));
  EXPECT_TRUE(equal_on_all_ranks(world, model->right->weight));
}

RANKS_TEST(Join, early_termination_is_told_to_all, 2) {
  World world = init();
  torch::nn::Linear model(2, 2);
  DistributedDataParallel ddp(world, model);
  const auto loop = [&] {
    for (int step = 0; step < 1 + 3 * world.rank(); ++step)
      ddp(torch::ones({1, 2})).sum().backward();
  };
  EXPECT_THROW(ddp.join(loop, {.throw_on_early_termination = true}), Error);
}
