#include "lockstep/deferred.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/cpu_memory.h"
#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/sharded.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

Gpt2Config deferred_config(bool tied) {
  Gpt2Config config;
  config.vocab_size = 97;
  config.n_positions = 16;
  config.n_embd = 24;
  config.n_layer = 3;
  config.n_head = 2;
  config.tie_word_embeddings = tied;
  return config;
}

void expect_weights_of(Gpt2& expected, Gpt2& deferred, World& world, ShardStage stage) {
  for (const at::Tensor& parameter : deferred->parameters()) EXPECT_TRUE(parameter.is_meta());
  ShardedDataParallel sharded(world, deferred, {.stage = stage, .units = {"h.*"}});
  sharded.with_whole_parameters([&] {
    const auto found = deferred->named_parameters();
    for (const auto& each : expected->named_parameters()) {
      EXPECT_TRUE(torch::equal(each.value(), found[each.key()]))
          << each.key() << ", stage " << static_cast<int>(stage);
    }
  });
  // And it trains.
  const at::Tensor ids = torch::arange(12).view({2, 6});
  const Gpt2Loss loss = sharded(ids, ids.roll(-1, 1));
  loss.sum.backward();
  for (const auto& piece : sharded.parameters()) EXPECT_TRUE(piece.tensor.grad().defined());
}

struct NotDeferred : torch::nn::Module {
  NotDeferred() { register_parameter("weight", at::empty({4, 4}, at::kMeta)); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

}  // namespace

RANKS_TEST(Deferred, weights_have_the_bits_of_a_model_that_was_made_whole, 3) {
  World world = init();
  for (const bool tied : {true, false}) {
    Gpt2 whole(deferred_config(tied), {.seed = 7});
    for (const ShardStage stage : {ShardStage::optimizer, ShardStage::parameters}) {
      Gpt2 model(deferred_config(tied), {.seed = 7, .deferred = true});
      expect_weights_of(whole, model, world, stage);
    }
  }
}

RANKS_TEST(Deferred, weights_come_from_files_tensor_by_tensor, 2) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "hub", 0);
  Gpt2 whole(deferred_config(/*tied=*/true), {.seed = 7});
  if (world.rank() == 0) save_gpt2(whole, folder);
  world.barrier();
  Gpt2 model = load_gpt2(folder, {.deferred = true});
  expect_weights_of(whole, model, world, ShardStage::parameters);
  world.barrier();
}

// 25 million parameters are 101 MB, and a rank's quarter 25.
RANKS_TEST(Deferred, a_model_is_made_and_used_without_its_whole_in_memory, 4) {
  reuse_cpu_memory();  // which counts
  World world = init();
  torch::set_num_threads(1);
  Gpt2Config config = deferred_config(/*tied=*/true);
  config.n_embd = 512;
  config.n_layer = 8;
  const std::int64_t whole_bytes = 4 * config.parameter_count();
  const at::Tensor ids = torch::arange(6).view({1, 6});
  const auto use = [&](const Gpt2Config& shape) {
    Gpt2 model(shape, {.deferred = true});
    ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(sharded(ids).isfinite().all().item<bool>());
  };
  use(deferred_config(/*tied=*/true));  // whatever is made once is made before
  const auto before = static_cast<std::int64_t>(cpu_memory().tensor_bytes);
  const auto most = [&] {
    return static_cast<std::int64_t>(cpu_memory().peak_tensor_bytes) - before;
  };
  reset_cpu_memory_peak();
  use(config);
  EXPECT_LT(most(), whole_bytes * 3 / 4);
  reset_cpu_memory_peak();
  const Gpt2 whole(config);
  EXPECT_GE(most(), whole_bytes * 99 / 100);  // a little of what was there before may be gone
  world.barrier();
}

RANKS_TEST(Deferred, a_module_that_cannot_make_its_values_is_refused, 1) {
  World world = init();
  try {
    ShardedDataParallel<NotDeferred> sharded(world, std::make_shared<NotDeferred>());
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("it is no DeferredModule"), std::string::npos)
        << error.what();
  }
}
