#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Trains until a peer dies in the middle of backward, then goes on with those who are left.
void lose_a_peer(Reduction reduction, int victim) {
  World world = init();
  const int rank = world.rank(), survivors = world.world_size() - 1;
  torch::manual_seed(1);
  auto model = std::make_shared<Wide>();
  std::optional<DistributedDataParallel<Wide>> ddp;
  const DistributedDataParallelOptions options{.bucket_cap_mb = 0.1, .reduction = reduction};
  ddp.emplace(world, model, options);
  const auto step = [&](bool fatal) {
    ddp->zero_grad();
    const at::Tensor loss = ddp->forward(torch::randn({4, 200})).pow(2).sum();
    if (fatal && rank == victim) {
      // In the middle: the last layers' gradients are on their way, the first layer's not computed.
      model->layers[1]->as<torch::nn::Linear>()->weight.register_hook(
          [](const at::Tensor&) { kill_this_process(); });
    }
    loss.backward();
  };
  for (int i = 0; i < 3; ++i) step(false);

  const auto start = std::chrono::steady_clock::now();
  try {
    step(true);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.peers(), std::vector<int>{victim}) << lost.what();
    EXPECT_EQ(lost.operation(), "all_reduce");
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);

  ddp.reset();
  world = init({.store = Store::tcp({.port = std::atoi(std::getenv("MASTER_PORT"))}),
                .rank = rank - (rank > victim ? 1 : 0),
                .world_size = survivors,
                .epoch = 1});
  ddp.emplace(world, model, options);
  for (int i = 0; i < 3; ++i) step(false);
  EXPECT_TRUE(equal_on_all_ranks(world, model->layers[0]->as<torch::nn::Linear>()->weight.grad()));
}

}  // namespace

RANKS_TEST_WITH(PeerLoss, during_backward_with_ordered_reduction, {.count = 3, .killed = {1}}) {
  lose_a_peer(Reduction::ordered, 1);
}
RANKS_TEST_WITH(PeerLoss, during_backward_with_native_reduction, {.count = 4, .killed = {1}}) {
  lose_a_peer(Reduction::native, 1);
}
RANKS_TEST_WITH(PeerLoss, of_rank_0_during_backward, {.count = 2, .killed = {0}}) {
  lose_a_peer(Reduction::ordered, 0);
}
RANKS_TEST_WITH(PeerLoss, during_backward_with_ordered_reduction_over_tcp,
                {.count = 3, .killed = {1}, .environment = {{"LOCKSTEP_SHM", "0"}}}) {
  lose_a_peer(Reduction::ordered, 1);
}
