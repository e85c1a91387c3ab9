#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "lockstep/autocast.h"
#include "lockstep/comm_hook.h"
#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "tests/support/ranks.h"
#include "tests/support/said.h"

// GPT-2's fused path under DistributedDataParallel, beside ATen's operators.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Size {
  std::int64_t batch, tokens, vocabulary, width;
};
// Attention and the head are the libraries' for one, and our own tiles' for the other where the GPU
// is a Hopper.
constexpr Size kSmall{.batch = 4, .tokens = 48, .vocabulary = 515, .width = 64};
constexpr Size kForTiles{.batch = 24, .tokens = 256, .vocabulary = 1500, .width = 128};
constexpr int kSteps = 12;

// Series that can be learned: each token is the one before plus one.
at::Tensor tokens_of(const Size& size, int step, int rank) {
  torch::manual_seed(100 * step + rank);
  const at::Tensor first = torch::randint(40, {size.batch, 1}, torch::kLong);
  return (first + torch::arange(size.tokens)).cuda();
}

Gpt2 model_of(World& world, const Size& size, bool fused) {
  Gpt2 model(Gpt2Config{.vocab_size = size.vocabulary,
                        .n_positions = size.tokens,
                        .n_embd = size.width,
                        .n_layer = 2,
                        .n_head = 2,
                        .embd_pdrop = 0,
                        .attn_pdrop = 0,
                        .resid_pdrop = 0},
             Gpt2Options{.fused = fused, .seed = 5});
  model->to(world.device());
  return model;
}

// Of this rank's tokens of a step. A model that leaves the fused path says so.
at::Tensor mean_loss(DistributedDataParallel<Gpt2Impl>& ddp, const at::Tensor& ids) {
  const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
  Gpt2Loss loss;
  EXPECT_EQ(said_by([&] { loss = ddp(ids, ids.roll(-1, 1)); }), "");
  return loss.sum / loss.count;
}

// The losses of all steps, each the mean over the ranks.
std::vector<double> losses_of(World& world, const Size& size, bool fused,
                              const DistributedDataParallelOptions& how) {
  Gpt2 model = model_of(world, size, fused);
  DistributedDataParallel ddp(world, model, how);
  AdamW optimizer(named_parameters(*model), {.lr = 1e-3});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    ddp.zero_grad();
    const at::Tensor mean = mean_loss(ddp, tokens_of(size, step, world.rank()));
    mean.backward();
    optimizer.step();
    at::Tensor all = mean.detach().cpu();
    world.group().all_reduce(all);
    losses.push_back(all.item<double>() / world.world_size());
  }
  return losses;
}

void expect_near(const std::vector<double>& some, const std::vector<double>& others) {
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_NEAR(some[i], others[i], 1e-2 * others[i]) << "step " << i;
  }
  EXPECT_LT(some.back(), some.front());
}

}  // namespace

RANKS_TEST_WITH(Gpt2OnRanksThatShareAGpu, trains_the_fused_path_as_aten_does,
                {.count = 2, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  for (const Size& size : {kSmall, kForTiles}) {
    const auto plain = losses_of(world, size, /*fused=*/false, {.bucket_cap_mb = 0.05});
    expect_near(losses_of(world, size, /*fused=*/true, {.bucket_cap_mb = 0.05}), plain);
    expect_near(losses_of(world, size, /*fused=*/true, {.gradient_as_bucket_view = true}), plain);
  }
}

// A block's gradients are there before those below it are computed: buckets need not wait for the
// end. The first backward has them in one bucket.
RANKS_TEST_WITH(Gpt2OnRanksThatShareAGpu, reduces_the_fused_path_while_backward_goes_on,
                {.count = 2, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  Gpt2 model = model_of(world, kSmall, /*fused=*/true);
  DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.05});
  int buckets = 0, before_the_end = 0;
  bool is_at_the_end = false;
  ddp.register_comm_hook([&](c10d::GradBucket& bucket) {
    ++buckets;
    if (!is_at_the_end) ++before_the_end;
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(), std::vector<c10::Device>{world.device()});
    future->markCompleted(bucket.getBuffer());
    return future;
  });
  // What backward computes last.
  model->named_parameters()["wte.weight"].register_hook(
      [&](const at::Tensor&) { is_at_the_end = true; });
  for (int step = 0; step < 2; ++step) {
    buckets = before_the_end = 0;
    is_at_the_end = false;
    ddp.zero_grad();
    mean_loss(ddp, tokens_of(kSmall, step, world.rank())).backward();
    EXPECT_TRUE(is_at_the_end);
  }
  EXPECT_GT(buckets, 4);
  EXPECT_GE(before_the_end, buckets - 3);
}

RANKS_TEST_WITH(Gpt2OnNccl, trains_the_fused_path_as_aten_does, {.count = 1, .gpu = true}) {
  World world = init();
  EXPECT_EQ(world.group().backend(), "cpu:gloo,cuda:nccl");
  for (const Size& size : {kSmall, kForTiles}) {
    const auto plain = losses_of(world, size, /*fused=*/false, {.bucket_cap_mb = 0.05});
    expect_near(losses_of(world, size, /*fused=*/true, {.bucket_cap_mb = 0.05}), plain);
  }
}
