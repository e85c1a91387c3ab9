#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/gpt2.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

using namespace lockstep;

namespace {

struct Gpt2Run {
  bool checkpointing = false;
  bool bucket_view = false;
};

// Gradients after a few micro-batches, of which the last is reduced.
std::map<std::string, at::Tensor> gpt2_gradients(World& world, const Gpt2Run& run) {
  Gpt2 model(
      Gpt2Config{.vocab_size = 61, .n_positions = 16, .n_embd = 32, .n_layer = 3, .n_head = 2},
      Gpt2Options{.activation_checkpointing = run.checkpointing, .seed = 4});
  DistributedDataParallel ddp(
      world, model,
      DistributedDataParallelOptions{.bucket_cap_mb = 0.02,
                                     .gradient_as_bucket_view = run.bucket_view});
  torch::manual_seed(world.rank());
  const at::Tensor ids = torch::randint(61, {3, 2, 17}, torch::kLong);
  for (int i = 0; i < 3; ++i) {
    std::optional<NoSync> local;
    if (i < 2) local.emplace(ddp.engine());
    const Gpt2Loss loss =
        ddp.forward(ids[i].narrow(1, 0, 16), ids[i].narrow(1, 1, 16).contiguous());
    EXPECT_EQ(loss.count, 32);
    loss.sum.backward();
  }
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = item.value().grad().clone();
  }
  return gradients;
}

}  // namespace

// Checkpointing computes blocks again inside backward, where the reduction listens.
RANKS_TEST(Gpt2InDdp, checkpointing_and_bucket_views_change_no_bit, 2) {
  World world = init();
  const auto plain = gpt2_gradients(world, {});
  for (const Gpt2Run run : {Gpt2Run{.checkpointing = true}, Gpt2Run{.bucket_view = true},
                            Gpt2Run{.checkpointing = true, .bucket_view = true}}) {
    const auto found = gpt2_gradients(world, run);
    ASSERT_EQ(found.size(), plain.size());
    for (const auto& [name, gradient] : plain) {
      EXPECT_TRUE(found.at(name).equal(gradient)) << name;
      EXPECT_GT(gradient.abs().max().item<float>(), 0) << name;
    }
  }
}
