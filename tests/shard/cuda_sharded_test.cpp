#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "tests/support/ranks.h"
#include "tests/support/said.h"

// Sharded training on a GPU, beside DistributedDataParallel. NCCL wants a GPU for each rank: on one
// GPU there is one rank, whose part is the whole.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kTokens = 48;
constexpr int kShardedSteps = 12;

Gpt2 small_gpt(World& world, bool fused, bool checkpoint) {
  Gpt2 model(Gpt2Config{.vocab_size = 515,
                        .n_positions = kTokens,
                        .n_embd = 64,
                        .n_layer = 3,
                        .n_head = 2,
                        .embd_pdrop = 0,
                        .attn_pdrop = 0,
                        .resid_pdrop = 0},
             Gpt2Options{.activation_checkpointing = checkpoint, .fused = fused, .seed = 5});
  model->to(world.device());
  return model;
}

// Series that can be learned: each token is the one before plus one.
at::Tensor tokens_of(int step) {
  torch::manual_seed(step);
  return (torch::randint(40, {4, 1}, torch::kLong) + torch::arange(kTokens)).cuda();
}

template <typename Wrapped, typename Optimizer>
std::vector<double> train(Wrapped& wrapped, Optimizer& optimizer) {
  std::vector<double> losses;
  for (int step = 0; step < kShardedSteps; ++step) {
    const at::Tensor ids = tokens_of(step);
    wrapped.zero_grad();
    at::Tensor mean;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      const Gpt2Loss loss = wrapped(ids, ids.roll(-1, 1));
      mean = loss.sum / loss.count;
    }
    mean.backward();
    optimizer.step();
    losses.push_back(mean.item<double>());
  }
  return losses;
}

std::vector<double> replicated(World& world, bool fused) {
  Gpt2 model = small_gpt(world, fused, /*checkpoint=*/false);
  DistributedDataParallel ddp(world, model);
  AdamW optimizer(named_parameters(*model), {.lr = 1e-3});
  return train(ddp, optimizer);
}

std::vector<double> sharded(World& world, bool fused, bool checkpoint, const ShardedOptions& how) {
  Gpt2 model = small_gpt(world, fused, checkpoint);
  ShardedDataParallel engine(world, model, how);
  AdamW optimizer(engine.parameters(), {.lr = 1e-3});
  const std::vector<double> losses = train(engine, optimizer);
  for (const NamedParameter& part : engine.parameters()) {
    EXPECT_EQ(part.tensor.is_cpu(), how.offload_optimizer) << part.name;
  }
  return losses;
}

void expect_close(const std::vector<double>& some, const std::vector<double>& others,
                  const std::string& what) {
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_NEAR(some[i], others[i], 1e-2 * others[i]) << what << ", step " << i;
  }
  EXPECT_LT(some.back(), some.front()) << what;
}

}  // namespace

RANKS_TEST_WITH(ShardedOnNccl, trains_as_ddp_does_in_every_stage, {.count = 1, .gpu = true}) {
  World world = init();
  const auto plain = replicated(world, /*fused=*/false);
  for (const int stage : {1, 2, 3}) {
    for (const bool offload : {false, true}) {
      for (const bool checkpoint : {false, true}) {
        const ShardedOptions how{.stage = static_cast<ShardStage>(stage),
                                 .units = {"h.*"},
                                 .offload_optimizer = offload};
        expect_close(sharded(world, /*fused=*/false, checkpoint, how), plain,
                     concat("stage ", stage, offload ? ", offloaded" : "",
                            checkpoint ? ", with checkpoints" : ""));
      }
    }
  }
}

#ifdef LOCKSTEP_KERNELS
RANKS_TEST_WITH(ShardedOnNccl, keeps_the_fused_path_while_weights_are_whole,
                {.count = 1, .gpu = true}) {
  World world = init();
  const auto plain = replicated(world, /*fused=*/true);
  for (const int stage : {1, 2}) {
    std::vector<double> found;
    const std::string said = said_by([&] {
      found = sharded(world, /*fused=*/true, /*checkpoint=*/stage == 1,
                      {.stage = static_cast<ShardStage>(stage), .units = {"h.*"}});
    });
    EXPECT_EQ(said.find("ATen's operators"), std::string::npos);
    expect_close(found, plain, concat("stage ", stage));
  }
  const std::string said = said_by([&] {
    sharded(world, /*fused=*/true, /*checkpoint=*/false,
            {.stage = ShardStage::parameters, .units = {"h.*"}});
  });
  EXPECT_NE(said.find("its parameters are sharded"), std::string::npos);
}
#endif
