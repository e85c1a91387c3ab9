#include "lockstep/step_transaction.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

using namespace lockstep;

namespace {

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{3, 4};
  torch::nn::BatchNorm1d norm{4};
};

struct NormedNet {
  std::shared_ptr<NormedNetImpl> net = [] {
    torch::manual_seed(3);
    return std::make_shared<NormedNetImpl>();
  }();

  torch::Tensor mean() const { return net->norm->running_mean.clone(); }
  void compute(int seed) {
    torch::manual_seed(seed);
    net->forward(torch::randn({6, 3})).square().sum().backward();
  }
  bool has_gradients() const { return net->linear->weight.grad().defined(); }
};

World world_of_one() {
  return init({.store = Store::tcp({.serve = true}), .rank = 0, .world_size = 1});
}

}  // namespace

TEST(StepTransactions, a_step_that_is_not_committed_leaves_no_trace) {
  World world = world_of_one();
  NormedNet fixture;
  StepTransactions steps(world.group(), fixture.net);
  const torch::Tensor before = fixture.mean();
  {
    auto step = steps.begin();
    fixture.compute(1);
    EXPECT_FALSE(torch::equal(fixture.mean(), before));
  }
  EXPECT_TRUE(torch::equal(fixture.mean(), before));
  EXPECT_EQ(fixture.net->norm->num_batches_tracked.item<int>(), 0);
  EXPECT_FALSE(fixture.has_gradients());
}

TEST(StepTransactions, an_exception_aborts_and_the_step_can_be_repeated) {
  World world = world_of_one();
  NormedNet disturbed, undisturbed;
  StepTransactions steps(world.group(), disturbed.net);
  try {
    auto step = steps.begin();
    disturbed.compute(1);
    throw PeerLost("gone", {});
  } catch (const PeerLost&) {
  }
  auto step = steps.begin();
  disturbed.compute(1);
  undisturbed.compute(1);
  bool applied = false;
  step.commit([&] {
    applied = true;
    EXPECT_TRUE(
        torch::equal(disturbed.net->linear->weight.grad(), undisturbed.net->linear->weight.grad()));
  });
  EXPECT_TRUE(applied);
  EXPECT_TRUE(torch::equal(disturbed.mean(), undisturbed.mean()));
}

TEST(StepTransactions, every_slot_starts_from_the_committed_buffers_and_slot_0_stays) {
  World world = world_of_one();
  NormedNet both, only_first;
  StepTransactions steps(world.group(), both.net);
  auto step = steps.begin();
  both.compute(1);
  step.next_slot();
  EXPECT_TRUE(torch::equal(both.mean(), torch::zeros({4})));
  both.compute(2);
  step.commit([] {});
  only_first.compute(1);
  EXPECT_TRUE(torch::equal(both.mean(), only_first.mean()));
}

TEST(StepTransactions, a_process_that_is_alone_hears_in_a_commit_that_its_world_ends) {
  World world = world_of_one();
  NormedNet fixture;
  StepTransactions steps(world.group(), fixture.net);
  const torch::Tensor before = fixture.mean();
  bool applied = false;
  world.abort();
  try {
    auto step = steps.begin();
    fixture.compute(1);
    step.commit([&] { applied = true; });
    ADD_FAILURE() << "nobody was told";
  } catch (const Aborted&) {
  }
  EXPECT_FALSE(applied);
  EXPECT_TRUE(torch::equal(fixture.mean(), before));
}

RANKS_TEST(StepTransactions, a_commit_gives_all_ranks_the_buffers_of_slot_0, 3) {
  World world = init();
  NormedNet mine, of_rank_0;
  StepTransactions steps(world.group(), mine.net);
  auto step = steps.begin();
  mine.compute(10 + world.rank());
  step.commit([] {});
  of_rank_0.compute(10);
  EXPECT_TRUE(torch::equal(mine.mean(), of_rank_0.mean()));
}
