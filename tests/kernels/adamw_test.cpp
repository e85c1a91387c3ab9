#include "kernels/adamw.h"

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// A step's numbers as the kernels read them: four floats on the GPU.
struct StepOnGpu {
  at::Tensor values = torch::zeros({4}, at::kCUDA);
  kernels::AdamWStep* get() { return reinterpret_cast<kernels::AdamWStep*>(f32(values)); }
  void set(double learning_rate, const kernels::AdamWOptions& options, int step, double scale) {
    values.copy_(torch::tensor({learning_rate, 1 - std::pow(double{options.beta1}, step),
                                std::sqrt(1 - std::pow(double{options.beta2}, step)), scale},
                               at::kFloat));
  }
};

TEST(AdamWOnGpu, FollowsTheFormulaInFloat64OverManySteps) {
  for (const std::int64_t count : {1L, 7L, 8L, 1000003L}) {
    torch::manual_seed(static_cast<std::uint64_t>(count));
    const kernels::AdamWOptions options{.weight_decay = 0.1f};
    const std::int64_t decayed = count / 2;
    const at::Tensor weights = torch::randn({count}, at::kCUDA);
    const at::Tensor first = torch::zeros({count}, at::kCUDA);
    const at::Tensor second = torch::zeros({count}, at::kCUDA);
    const at::Tensor out = empty_bf16({count});
    at::Tensor exact = weights.to(at::kDouble);
    at::Tensor exact_first = first.to(at::kDouble), exact_second = second.to(at::kDouble);
    const at::Tensor decay = torch::zeros({count}, exact.options());
    decay.narrow(0, 0, decayed).fill_(double{options.weight_decay});
    StepOnGpu step;
    for (int i = 1; i <= 20; ++i) {
      const at::Tensor gradients = torch::randn({count}, at::kCUDA) * 0.01;
      step.set(1e-3, options, i, 0.5);
      kernels::adamw({.weights = f32(weights),
                      .first_moments = f32(first),
                      .second_moments = f32(second),
                      .gradients = f32(gradients),
                      .out = bf16(out),
                      .count = count,
                      .decayed = decayed,
                      .step = step.get(),
                      .options = options},
                     current_stream());
      const at::Tensor g = gradients.to(at::kDouble) * 0.5;
      exact = exact * (1 - 1e-3 * decay);
      exact_first = exact_first + (1 - double{options.beta1}) * (g - exact_first);
      exact_second = double{options.beta2} * exact_second + (1 - double{options.beta2}) * g * g;
      const double bias1 = 1 - std::pow(double{options.beta1}, i);
      const double bias2 = std::sqrt(1 - std::pow(double{options.beta2}, i));
      exact = exact - 1e-3 / bias1 * exact_first / (exact_second.sqrt() / bias2 + 1e-8);
    }
    EXPECT_LE((weights.to(at::kDouble) - exact).abs().max().item<double>(), 4e-6) << count;
    EXPECT_TRUE(out.equal(weights.to(at::kBFloat16))) << count;
  }
}

TEST(AdamWOnGpu, NormAndClippingAreThoseOfTorch) {
  for (const std::int64_t count : {1L, 13L, 5000001L}) {
    torch::manual_seed(static_cast<std::uint64_t>(count));
    const at::Tensor gradients = torch::randn({count}, at::kCUDA) * 0.1;
    const at::Tensor norm = empty_f32({1});
    const at::Tensor partial = empty_f32({kernels::global_norm_scratch()});
    StepOnGpu step;
    const double exact = gradients.to(at::kDouble).norm().item<double>();
    for (const float limit : {0.0f, 0.5f, 1e9f}) {
      step.values.fill_(7.0f);
      kernels::global_norm(f32(gradients), count, limit, f32(norm), step.get(), f32(partial),
                           current_stream());
      EXPECT_NEAR(norm.item<float>() / exact, 1.0, 1e-5);
      const double scale = limit == 0.0f ? 7.0 : std::min(1.0, limit / (exact + 1e-6));
      EXPECT_NEAR(step.values[3].item<float>() / scale, 1.0, 1e-5) << limit;
      EXPECT_EQ(step.values[0].item<float>(), 7.0f);
    }
  }
}

}  // namespace
