#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "tests/support/ranks.h"

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

// The losses of all steps, each the mean over the ranks.
std::vector<double> losses_of(World& world, const Size& size, bool fused,
                              const DistributedDataParallelOptions& how) {
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
  DistributedDataParallel ddp(world, model, how);
  AdamW optimizer(named_parameters(*model), {.lr = 1e-3});
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor ids = tokens_of(size, step, world.rank());
    ddp.zero_grad();
    at::Tensor mean;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      const Gpt2Loss loss = ddp(ids, ids.roll(-1, 1));
      mean = loss.sum / loss.count;
    }
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

RANKS_TEST_WITH(Gpt2OnNccl, trains_the_fused_path_as_aten_does, {.count = 1, .gpu = true}) {
  World world = init();
  EXPECT_EQ(world.group().backend(), "cpu:gloo,cuda:nccl");
  for (const Size& size : {kSmall, kForTiles}) {
    const auto plain = losses_of(world, size, /*fused=*/false, {.bucket_cap_mb = 0.05});
    expect_near(losses_of(world, size, /*fused=*/true, {.bucket_cap_mb = 0.05}), plain);
  }
}
