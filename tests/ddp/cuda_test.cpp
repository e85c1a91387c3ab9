#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm_hook.h"
#include "lockstep/data_parallel.h"
#include "lockstep/ddp.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

// What needs a GPU. NCCL refuses two ranks on one GPU, so several ranks use Gloo on CUDA tensors,
// and NCCL is used by a world of one.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

at::Tensor input_of(int step, int slot) {
  torch::manual_seed(100 * step + slot);
  return torch::randn({4, 200}).to(at::kCUDA);
}

void descend(Wide& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.sub_(parameter.grad(), 0.1);
}

std::shared_ptr<Wide> make_model() {
  torch::manual_seed(7);
  auto model = std::make_shared<Wide>();
  model->to(at::kCUDA);
  return model;
}

std::vector<at::Tensor> train(World& world, const DistributedDataParallelOptions& options) {
  auto model = make_model();
  DistributedDataParallel ddp(world, model, options);
  for (int step = 0; step < 4; ++step) {
    ddp.zero_grad();
    ddp(input_of(step, world.rank())).pow(2).sum().backward();
    descend(*model);
  }
  return model->parameters();
}

bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal_bits(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace

RANKS_TEST_WITH(Cuda, ranks_that_share_a_gpu_train_over_gloo, {.count = 2, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  EXPECT_EQ(world.device().str(), "cuda:0");
  for (const auto reduction : {Reduction::ordered, Reduction::native}) {
    torch::nn::Linear model(4, 4);
    model->to(world.device());
    DistributedDataParallel ddp(world, model, {.reduction = reduction});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(torch::full({1, 4}, world.rank() + 1.0, world.device())).sum().backward();
      EXPECT_TRUE(equal_bits(model->weight.grad().cpu(), torch::full({4, 4}, 1.5)));
    }
  }
}

RANKS_TEST_WITH(Cuda, ordered_reduction_does_not_depend_on_the_buckets, {.count = 3, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  const auto one_bucket = train(world, {.reduction = Reduction::ordered});
  const auto many = train(world, {.bucket_cap_mb = 0.05, .reduction = Reduction::ordered});
  const auto views = train(
      world,
      {.bucket_cap_mb = 0.05, .gradient_as_bucket_view = true, .reduction = Reduction::ordered});
  EXPECT_TRUE(same(one_bucket, many));
  EXPECT_TRUE(same(one_bucket, views));
}

RANKS_TEST_WITH(Cuda, bfloat16_trains, {.count = 2, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  torch::nn::Linear model(4, 4);
  model->to(world.device(), at::kBFloat16);
  DistributedDataParallel ddp(world, model);
  ddp(torch::full({1, 4}, world.rank() + 1.0, torch::dtype(at::kBFloat16).device(world.device())))
      .sum()
      .backward();
  EXPECT_TRUE(equal_bits(model->weight.grad().cpu(), torch::full({4, 4}, 1.5, at::kBFloat16)));
}

RANKS_TEST_WITH(Cuda, nccl_is_chosen_for_a_gpu_and_trains, {.count = 1, .gpu = true}) {
  World world = init();
  EXPECT_EQ(world.group().backend(), "cpu:gloo,cuda:nccl");
  EXPECT_TRUE(world.device().is_cuda());
  at::Tensor tensor = torch::ones({4}, world.device());
  world.group().all_reduce(tensor, {.op = ReduceOp::avg});
  EXPECT_TRUE(equal_bits(tensor.cpu(), torch::ones({4})));
  EXPECT_EQ(world.group().broadcast_string("over gloo"), "over gloo");
  world.barrier();

  const auto native = train(world, {});
  const auto ordered = train(world, {.bucket_cap_mb = 0.05, .reduction = Reduction::ordered});
  EXPECT_TRUE(same(native, ordered));  // one rank: the sum is the gradient itself
}

RANKS_TEST_WITH(Cuda, hooks_compress_on_nccl, {.count = 1, .gpu = true}) {
  World world = init();
  for (const auto hook : {CommHook::fp16_compress, CommHook::bf16_compress}) {
    torch::nn::Linear model(2, 2);
    model->to(world.device());
    DistributedDataParallel ddp(world, model);
    ddp.register_comm_hook(hook);
    ddp(torch::full({1, 2}, 1.0009765625, world.device())).sum().backward();
    const double expected = hook == CommHook::bf16_compress ? 1.0 : 1.0009765625;
    EXPECT_TRUE(equal_bits(model->weight.grad().cpu(), torch::full({2, 2}, expected)));
  }
}

RANKS_TEST_WITH(Cuda, a_world_on_nccl_can_be_aborted_and_followed_by_another,
                {.count = 1, .gpu = true}) {
  World world = init();
  at::Tensor tensor = torch::ones({4}, world.device());
  world.group().all_reduce(tensor);
  world.abort();
  EXPECT_THROW(world.group().all_reduce(tensor), Aborted);
  world = init();
  world.group().all_reduce(tensor);
  torch::cuda::synchronize();
}

RANKS_TEST_WITH(Cuda, a_device_beyond_the_last_is_refused, {.count = 1, .gpu = true}) {
  EXPECT_THROW(init({.device = "cuda:99"}), InvalidArgument);
}

RANKS_TEST_WITH(Cuda, a_cpu_input_for_a_model_on_the_gpu_is_refused, {.count = 1, .gpu = true}) {
  World world = init();
  torch::nn::Linear model(2, 2);
  model->to(world.device());
  DistributedDataParallel ddp(world, model);
  EXPECT_THROW(ddp(torch::ones({1, 2})), InvalidArgument);
}

TEST(Cuda, data_parallel_gathers_on_one_device) {
  torch::nn::Linear model(3, 2);
  model->to(at::kCUDA);
  const at::Tensor output = data_parallel(model, torch::ones({4, 3}, at::kCUDA));
  EXPECT_EQ(output.sizes(), (std::vector<std::int64_t>{4, 2}));
  output.sum().backward();
  EXPECT_TRUE(model->weight.grad().defined());
}
