#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/clip_grad.h"
#include "lockstep/ema.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/optimizer.h"
#include "lockstep/sync_batch_norm.h"
#include "lockstep/world.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

// The parts of optim, and SyncBatchNorm, whose kernels on a GPU are others than on the CPU.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

const std::vector<OptimizerOptions> kOptions = {
    SGDOptions{.lr = 0.1, .weight_decay = 0.01},
    SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1},
    SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true},
    AdamOptions{.lr = 0.01, .weight_decay = 0.01, .amsgrad = true},
    AdamWOptions{.lr = 0.01},
};

struct Pair {
  explicit Pair(at::ScalarType type, const OptimizerOptions& options) {
    torch::manual_seed(3);
    const auto start = torch::randn({9, 17});
    host = start.to(type).clone().requires_grad_();
    device = start.to(at::kCUDA).to(type).requires_grad_();
    on_host = make_optimizer({NamedParameter{"w", host}}, options);
    on_device = make_optimizer({NamedParameter{"w", device}}, options);
  }
  void set_gradients() {
    const auto gradient = torch::randn({9, 17}).to(host.scalar_type());
    host.mutable_grad() = gradient.clone();
    device.mutable_grad() = gradient.to(at::kCUDA);
  }
  at::Tensor host, device;
  std::unique_ptr<Optimizer> on_host, on_device;
};

}  // namespace

TEST(CudaOptimizer, trains_as_on_the_cpu_and_skips_where_it_is_told_to) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const OptimizerOptions& options : kOptions) {
      Pair pair(type, options);
      for (int step = 0; step < 8; ++step) {
        pair.set_gradients();
        const float skip = step == 0 || step == 5 ? 1 : 0;
        pair.on_host->step(
            {.grad_scale = torch::full({}, 2.0f), .found_inf = torch::full({}, skip)});
        pair.on_device->step({.grad_scale = torch::full({}, 2.0f).to(at::kCUDA),
                              .found_inf = torch::full({}, skip).to(at::kCUDA)});
      }
      const double tolerance = type == at::kFloat ? 1e-5 : 3e-2;
      EXPECT_TRUE(torch::allclose(pair.device.cpu().to(at::kFloat), pair.host.to(at::kFloat),
                                  tolerance, tolerance))
          << options.index() << " " << type;
      Pair resumed(type, options);
      resumed.on_device->load_state(pair.on_host->state());  // from the other device
      const State state = resumed.on_device->state();
      for (const auto& [name, tensor] : state.tensors) {
        EXPECT_TRUE(tensor.is_cuda()) << name;
      }
    }
  }
}

TEST(CudaOptimizer, a_learning_rate_on_the_device_is_taken) {
  for (const OptimizerOptions& options : kOptions) {
    Pair pair(at::kFloat, options);
    pair.set_gradients();
    pair.on_device->step({.lr = {torch::full({}, 0.5f).to(at::kCUDA)}});
    pair.on_host->set_lr(0, 0.5);
    pair.on_host->step();
    EXPECT_TRUE(torch::allclose(pair.device.cpu(), pair.host, 1e-5, 1e-5));
  }
}

TEST(CudaOptimizer, a_parameter_in_channels_last_takes_a_contiguous_gradient) {
  auto weight = torch::ones({4, 3, 2, 2}, at::kCUDA)
                    .contiguous(at::MemoryFormat::ChannelsLast)
                    .requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {.lr = 1});
  const auto gradient = torch::arange(48.0, at::TensorOptions(at::kCUDA)).reshape({4, 3, 2, 2});
  weight.mutable_grad() = gradient;
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight.detach(), 1 - gradient));
}

TEST(CudaOptimizer, clipping_scaler_and_average_stay_on_the_device) {
  auto weight = torch::ones({64}, at::kCUDA).requires_grad_();
  AdamW optimizer({NamedParameter{"w", weight}}, {});
  Ema ema({NamedParameter{"w", weight}}, {});
  GradScaler scaler({.init_scale = 8});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kHalf});
      const auto product = torch::mm(weight.view({8, 8}), weight.view({8, 8}));
      EXPECT_EQ(product.scalar_type(), at::kHalf);
      loss =
          product.to(at::kFloat).sum() * (step == 1 ? std::numeric_limits<float>::infinity() : 1);
    }
    scaler.scale(loss).backward();
    scaler.unscale(optimizer);
    EXPECT_EQ(scaler.found_inf().item<float>(), step == 1 ? 1 : 0);
    EXPECT_EQ(found_non_finite(optimizer.parameters()).item<float>(), step == 1 ? 1 : 0);
    EXPECT_TRUE(clip_grad_norm(optimizer.parameters(), {.max_norm = 0.5}).is_cuda());
    scaler.step(optimizer);
    scaler.update();
    ema.update();
  }
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(optimizer.state().tensors.at("w.step").item<float>(), 2);
  EXPECT_TRUE(ema.state().tensors.at("w").is_cuda());
  EXPECT_TRUE(torch::isfinite(weight).all().item<bool>());
}

RANKS_TEST_WITH(CudaSyncBatchNorm, equals_batch_norm_over_the_joined_batch,
                {.count = 2, .gpu = true}) {
  World world = init({.backend = "gloo", .device = "cuda:0"});
  torch::manual_seed(11);
  const auto whole_input = (torch::randn({6, 3, 4, 2}) * 3 + 1).to(at::kCUDA);
  const std::int64_t start = world.rank() == 0 ? 0 : 2;
  const std::int64_t length = world.rank() == 0 ? 2 : 4;
  torch::nn::BatchNorm2d plain(3);
  SyncBatchNorm sync(world.group(), SyncBatchNormOptions{.num_features = 3});
  plain->to(at::kCUDA);
  sync->to(at::kCUDA);
  auto whole = whole_input.clone().requires_grad_();
  auto part = whole_input.narrow(0, start, length).clone().requires_grad_();
  const auto expected = plain(whole);
  const auto output = sync(part);
  expected.pow(3).sum().backward();
  output.pow(3).sum().backward();
  EXPECT_TRUE(torch::allclose(output, expected.narrow(0, start, length), 1e-4, 1e-4));
  EXPECT_TRUE(torch::allclose(part.grad(), whole.grad().narrow(0, start, length), 1e-3, 1e-3));
  EXPECT_TRUE(torch::allclose(sync->running_var, plain->running_var, 1e-4, 1e-4));
  EXPECT_TRUE(equal_on_all_ranks(world, sync->running_mean.cpu()));

  // One rank without input.
  auto rest = whole_input.narrow(0, 0, world.rank() == 0 ? 6 : 0).clone().requires_grad_();
  const auto alone = sync(rest);
  alone.sum().backward();
  EXPECT_EQ(rest.grad().sizes(), rest.sizes());
  if (world.rank() == 0) {
    EXPECT_TRUE(torch::allclose(alone, plain(whole_input), 1e-4, 1e-4));
  }
}
