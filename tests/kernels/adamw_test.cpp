#include "kernels/adamw.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// A part and its step in float64 beside it.
struct Followed {
  explicit Followed(std::int64_t count)
      : weights(copy_of(torch::randn({count}, kDevice))),
        first(copy_of(torch::zeros({count}, kDevice))),
        second(copy_of(torch::zeros({count}, kDevice))),
        gradients(copy_of(torch::zeros({count}, kDevice))),
        out(empty_bf16({count})),
        exact(weights.to(at::kDouble)),
        exact_first(first.to(at::kDouble)),
        exact_second(second.to(at::kDouble)) {}

  kernels::AdamWPart part(const at::Tensor& number) const {
    return {.weights = f32(weights),
            .first_moments = f32(first),
            .second_moments = f32(second),
            .gradients = f32(gradients),
            .step = f32(number),
            .out = bf16(out),
            .count = weights.numel()};
  }

  void step_exactly(int number, double rate, double scale, const kernels::AdamWOptions& options) {
    const at::Tensor g = gradients.to(at::kDouble) * scale;
    exact = exact * (1 - rate * options.weight_decay);
    exact_first = exact_first + (1 - options.beta1) * (g - exact_first);
    exact_second = options.beta2 * exact_second + (1 - options.beta2) * g * g;
    const double bias1 = 1 - std::pow(options.beta1, number);
    const double bias2 = std::sqrt(1 - std::pow(options.beta2, number));
    exact = exact - rate / bias1 * exact_first / (exact_second.sqrt() / bias2 + options.epsilon);
  }

  double distance() const { return (weights.to(at::kDouble) - exact).abs().max().item<double>(); }

  at::Tensor weights, first, second, gradients, out;
  at::Tensor exact, exact_first, exact_second;
};

std::vector<kernels::AdamWPart> parts_of(const std::vector<Followed>& all,
                                         const at::Tensor& number) {
  std::vector<kernels::AdamWPart> parts;
  for (const Followed& each : all) parts.push_back(each.part(number));
  return parts;
}

TEST(AdamWKernel, FollowsTheFormulaInFloat64OverManySteps) {
  torch::manual_seed(5);
  std::vector<Followed> all;
  const std::int64_t large = by_device(1000003, 8195);
  for (const std::int64_t count : {1L, 3L, 4L, 4095L, 4096L, 4097L, large}) {
    all.emplace_back(count);
  }
  const at::Tensor number = torch::zeros({}, kDevice), rate = torch::zeros({}, kDevice);
  const at::Tensor scale = torch::full({}, 0.5f, kDevice);
  const kernels::AdamWOptions options{
      .learning_rate_on_device = f32(rate), .weight_decay = 0.1, .gradient_scale = f32(scale)};
  for (int i = 1; i <= 20; ++i) {
    number.fill_(i);
    rate.fill_(1e-3 / i);
    for (Followed& each : all) {
      each.gradients.normal_().mul_(0.01);
      each.step_exactly(i, 1e-3 / i, 0.5, options);
    }
    const auto parts = parts_of(all, number);
    kernels::adamw(parts.data(), static_cast<int>(parts.size()), options, current_stream());
  }
  for (const Followed& each : all) {
    EXPECT_LE(each.distance(), 4e-6) << each.weights.numel();
    EXPECT_TRUE(each.out.equal(each.weights.to(at::kBFloat16))) << each.weights.numel();
  }
}

TEST(AdamWKernel, TakesMorePartsThanALaunchHasRoomFor) {
  torch::manual_seed(6);
  std::vector<Followed> all;
  for (int i = 0; i < 1100; ++i) all.emplace_back(i % 7);  // some are empty
  const at::Tensor number = torch::ones({}, kDevice);
  const kernels::AdamWOptions options{.learning_rate = 1e-2};
  for (Followed& each : all) {
    each.gradients.normal_();
    each.step_exactly(1, 1e-2, 1, options);
  }
  const auto parts = parts_of(all, number);
  kernels::adamw(parts.data(), static_cast<int>(parts.size()), options, current_stream());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].weights.numel() == 0) continue;
    EXPECT_LE(all[i].distance(), 1e-6) << i;
  }
}

TEST(AdamWKernel, DoesNothingWhereInfinityWasFound) {
  std::vector<Followed> all;
  all.emplace_back(1000);
  const at::Tensor number = torch::ones({}, kDevice), found = torch::ones({}, kDevice);
  const auto parts = parts_of(all, number);
  const at::Tensor before = all[0].weights.clone();
  kernels::adamw(parts.data(), 1, {.learning_rate = 1, .weight_decay = 1, .found_inf = f32(found)},
                 current_stream());
  EXPECT_TRUE(all[0].weights.equal(before));
}

TEST(AdamWKernel, NormAndClippingAreThoseOfTorch) {
  const std::int64_t large = by_device(5000001, 100001);
  for (const std::int64_t count : {1L, 13L, large}) {
    torch::manual_seed(static_cast<std::uint64_t>(count));
    const at::Tensor gradients = copy_of(torch::randn({count}, kDevice) * 0.1);
    const at::Tensor norm = empty_f32({1}), clipped = empty_f32({1});
    const at::Tensor partial = empty_f32({kernels::global_norm_scratch()});
    const double exact = gradients.to(at::kDouble).norm().item<double>();
    for (const float limit : {0.0f, 0.5f, 1e9f}) {
      clipped.fill_(7.0f);
      kernels::global_norm(f32(gradients), count, limit, f32(norm), f32(clipped), f32(partial),
                           current_stream());
      EXPECT_NEAR(norm.item<float>() / exact, 1.0, 1e-5);
      const double scale = limit == 0.0f ? 7.0 : std::min(1.0, limit / (exact + 1e-6));
      EXPECT_NEAR(clipped.item<float>() / scale, 1.0, 1e-5) << limit;
    }
  }
}

}  // namespace
