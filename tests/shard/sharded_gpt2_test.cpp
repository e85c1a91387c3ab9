#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

Gpt2 small_gpt2(bool checkpointing) {
  Gpt2Config config;
  config.vocab_size = 101;
  config.n_positions = 24;
  config.n_embd = 36;
  config.n_layer = 3;
  config.n_head = 3;
  Gpt2 model(config, {.activation_checkpointing = checkpointing, .seed = 5});
  model->set_dropout(0);
  return model;
}

template <typename Parallel>
std::vector<float> train_gpt2(Parallel& parallel, Optimizer& optimizer, int rank) {
  std::vector<float> losses;
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 * step + rank);
    const at::Tensor ids = torch::randint(101, {3, 20}, torch::kLong);
    parallel.zero_grad();
    const Gpt2Loss loss = parallel(ids, ids.roll(-1, 1));
    (loss.sum / loss.count).backward();
    optimizer.step();
    losses.push_back(loss.sum.template item<float>());
  }
  return losses;
}

void expect_same_gpt2(bool checkpointing) {
  World world = init();
  torch::set_num_threads(1);
  Gpt2 plain = small_gpt2(checkpointing);
  DistributedDataParallel ddp(world, plain);
  AdamW optimizer(decay_groups(*plain, 0.1), {.lr = 1e-3});
  const auto expected = train_gpt2(ddp, optimizer, world.rank());
  for (const ShardStage stage :
       {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
    Gpt2 model = small_gpt2(checkpointing);
    ShardedDataParallel sharded(world, model, {.stage = stage, .units = {"h.*"}});
    AdamW parts(sharded.decay_groups(0.1), {.lr = 1e-3});
    EXPECT_EQ(train_gpt2(sharded, parts, world.rank()), expected) << static_cast<int>(stage);
    sharded.with_whole_parameters([&] {
      const auto found = model->named_parameters();
      for (const auto& each : plain->named_parameters()) {
        EXPECT_TRUE(torch::equal(each.value(), found[each.key()]))
            << each.key() << ", stage " << static_cast<int>(stage);
      }
    });
  }
}

}  // namespace

RANKS_TEST(ShardedGpt2, has_ddps_bits, 3) {
  expect_same_gpt2(false);
}
RANKS_TEST(ShardedGpt2, has_ddps_bits_with_activation_checkpointing, 2) {
  expect_same_gpt2(true);
}
