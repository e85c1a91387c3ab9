#include "lockstep/sync_batch_norm.h"

#include <numeric>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// The batch of all ranks, the same on each; rank r takes `rows[r]` of it.
struct Share {
  Share(int rank, std::vector<std::int64_t> rows, std::vector<std::int64_t> shape) {
    torch::manual_seed(11);
    std::int64_t total = 0;
    for (const std::int64_t count : rows) {
      total += count;
    }
    shape.insert(shape.begin(), total);
    whole = torch::randn(shape) * 3 + 1;
    target = torch::randn(shape);
    start = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
    length = rows[rank];
  }
  torch::Tensor part(const torch::Tensor& tensor) const { return tensor.narrow(0, start, length); }
  torch::Tensor whole, target;
  std::int64_t start = 0, length = 0;
};

void expect_near(const torch::Tensor& left, const torch::Tensor& right, const char* what) {
  EXPECT_TRUE(torch::allclose(left, right, 1e-5, 1e-5))
      << what << ": " << (left - right).abs().max().item<float>();
}

// Leads SyncBatchNorm on the parts and BatchNorm on the whole batch through two steps.
template <typename Plain>
void compare_with_whole_batch(World& world, const std::vector<std::int64_t>& rows,
                              const std::vector<std::int64_t>& shape) {
  const Share share(world.rank(), rows, shape);
  Plain plain(shape[0]);
  SyncBatchNorm sync(world.group(), SyncBatchNormOptions{.num_features = shape[0]});
  for (const auto& norm : {plain->weight, sync->weight}) {
    torch::NoGradGuard no_grad;
    norm.copy_(torch::linspace(0.5, 2, shape[0]));
  }
  for (int step = 0; step < 2; ++step) {
    auto whole = share.whole.clone().requires_grad_();
    auto part = share.part(share.whole).clone().requires_grad_();
    const auto expected = plain(whole);
    const auto output = sync(part);
    expect_near(output, share.part(expected), "output");
    ((expected - share.target) * expected).sum().backward();
    ((output - share.part(share.target)) * output).sum().backward();
    expect_near(part.grad(), share.part(whole.grad()), "gradient of the input");
    for (const auto& [mine, theirs] :
         {std::pair(sync->weight, plain->weight), std::pair(sync->bias, plain->bias)}) {
      auto sum = mine.grad().clone();
      world.group().all_reduce(sum);
      EXPECT_TRUE(torch::allclose(sum, theirs.grad(), 1e-4, 1e-3));
    }
    expect_near(sync->running_mean, plain->running_mean, "running mean");
    expect_near(sync->running_var, plain->running_var, "running variance");
    EXPECT_TRUE(equal_on_all_ranks(world, sync->running_mean));
    EXPECT_TRUE(equal_on_all_ranks(world, sync->running_var));
  }
  EXPECT_EQ(sync->num_batches_tracked.template item<std::int64_t>(), 2);
  sync->eval();
  plain->eval();
  expect_near(sync(share.part(share.whole)), share.part(plain(share.whole)), "evaluation");
}

}  // namespace

RANKS_TEST(SyncBatchNorm, equals_batch_norm_over_the_joined_batch, 2) {
  World world = init();
  compare_with_whole_batch<torch::nn::BatchNorm1d>(world, {3, 5}, {4});
  compare_with_whole_batch<torch::nn::BatchNorm1d>(world, {1, 1}, {4, 3});
  compare_with_whole_batch<torch::nn::BatchNorm2d>(world, {2, 4}, {3, 5, 2});
  compare_with_whole_batch<torch::nn::BatchNorm3d>(world, {2, 1}, {2, 2, 3, 2});
}

RANKS_TEST(SyncBatchNorm, takes_uneven_and_empty_batches, 3) {
  World world = init();
  compare_with_whole_batch<torch::nn::BatchNorm2d>(world, {3, 0, 1}, {3, 2, 2});
  compare_with_whole_batch<torch::nn::BatchNorm1d>(world, {0, 2, 5}, {4});
  SyncBatchNorm sync(world.group(), SyncBatchNormOptions{.num_features = 2});
  EXPECT_THROW(sync(torch::ones({world.rank() == 0 ? 1 : 0, 2})), InvalidArgument);
  EXPECT_THROW(sync(torch::ones({4, 3})), InvalidArgument);
}

RANKS_TEST(SyncBatchNorm, without_affine_and_with_a_cumulative_mean, 2) {
  World world = init();
  const Share share(world.rank(), {3, 2}, {4});
  torch::nn::BatchNorm1d plain(
      torch::nn::BatchNorm1dOptions(4).affine(false).momentum(std::nullopt));
  SyncBatchNorm sync = to_sync_batch_norm(world.group(), *plain->clone());
  EXPECT_FALSE(sync->weight.defined());
  for (int step = 1; step < 4; ++step) {
    plain(share.whole * step);
    sync(share.part(share.whole) * step);
    expect_near(sync->running_var, plain->running_var, "running variance");
  }
}

RANKS_TEST(SyncBatchNorm, half_precision_is_added_up_in_single, 2) {
  World world = init();
  const Share share(world.rank(), {300, 200}, {4});
  torch::nn::BatchNorm1d plain(4);
  SyncBatchNorm sync(world.group(), SyncBatchNormOptions{.num_features = 4});
  auto part = share.part(share.whole).to(torch::kBFloat16).requires_grad_();
  const auto output = sync(part);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(part.grad().scalar_type(), torch::kBFloat16);
  const auto expected = plain(share.whole.to(torch::kBFloat16).to(torch::kFloat));
  EXPECT_TRUE(torch::equal(output, share.part(expected).to(torch::kBFloat16)) ||
              torch::allclose(output.to(torch::kFloat), share.part(expected), 1e-2, 1e-2));
  expect_near(sync->running_mean, plain->running_mean, "running mean");
}

RANKS_TEST(SyncBatchNorm, ranks_stay_equal_under_ddp_and_layers_share_their_tensors, 3) {
  World world = init();
  torch::manual_seed(1);
  torch::nn::Sequential plain(torch::nn::Conv2d(2, 4, 3), torch::nn::BatchNorm2d(4),
                              torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(16, 3));
  const auto weight = plain[1]->as<torch::nn::BatchNorm2d>()->weight;
  auto layers = convert_sync_batch_norm(world.group(), plain);
  EXPECT_TRUE(layers[1]->as<SyncBatchNorm>()->weight.is_same(weight));
  EXPECT_EQ(layers->named_parameters().keys(), plain->named_parameters().keys());
  EXPECT_EQ(layers->named_buffers().keys(), plain->named_buffers().keys());
  EXPECT_THROW(to_sync_batch_norm(world.group(), *plain[0]), InvalidArgument);

  struct Model : torch::nn::Module {
    explicit Model(torch::nn::Sequential given)
        : layers(register_module("layers", std::move(given))) {}
    torch::Tensor forward(const torch::Tensor& input) { return layers->forward(input); }
    torch::nn::Sequential layers;
  };
  auto model = std::make_shared<Model>(layers);
  // Small buckets: their reductions run while SyncBatchNorm's backward communicates.
  DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.0001});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(100 + world.rank());
  for (int step = 0; step < 5; ++step) {
    ddp.zero_grad();
    ddp(torch::randn({2 + world.rank(), 2, 4, 4})).square().sum().backward();
    optimizer.step();
  }
  for (const auto& parameter : model->parameters()) {
    EXPECT_TRUE(equal_on_all_ranks(world, parameter));
    EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
  }
}

RANKS_TEST(SyncBatchNorm, clones_and_prints, 2) {
  World world = init();
  SyncBatchNorm sync(world.group(), SyncBatchNormOptions{.num_features = 2});
  sync->running_mean.fill_(3);
  auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(sync->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(torch::equal(copy->running_mean, sync->running_mean));
  EXPECT_FALSE(copy->running_mean.is_alias_of(sync->running_mean));
  std::ostringstream text;
  text << *sync;
  EXPECT_NE(text.str().find("SyncBatchNorm(2, eps=1e-05, momentum=0.1"), std::string::npos)
      << text.str();
  EXPECT_THROW(SyncBatchNorm(world.group(), SyncBatchNormOptions{}), InvalidArgument);
}
