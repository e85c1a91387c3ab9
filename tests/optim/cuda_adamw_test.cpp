#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"

using namespace lockstep;

namespace {

TEST(AdamWOnGpu, TheOptimizerStepsAsAtenDoes) {
  torch::manual_seed(8);
  const std::vector<std::vector<std::int64_t>> sizes = {{64, 33}, {5}, {1}, {128, 128}};
  std::vector<NamedParameter> parameters;
  std::vector<at::Tensor> weights, first, second, steps;
  for (const auto& size : sizes) {
    const at::Tensor start = torch::randn(size, at::kCUDA);
    parameters.push_back({concat("w", weights.size()), start.clone().requires_grad_()});
    weights.push_back(start);
    first.push_back(torch::zeros_like(start));
    second.push_back(torch::zeros_like(start));
    steps.push_back(torch::zeros({}, at::kCUDA));
  }
  AdamW optimizer(parameters, {.lr = 1e-2, .weight_decay = 0.05});
  for (int i = 1; i <= 50; ++i) {
    std::vector<at::Tensor> gradients;
    for (auto& parameter : parameters) {
      gradients.push_back(torch::randn_like(parameter.tensor.detach()));
      parameter.tensor.mutable_grad() = gradients.back().clone();
    }
    optimizer.step();
    for (auto& step : steps) step.fill_(i);
    at::_fused_adamw_(weights, gradients, first, second, {}, steps, 1e-2, 0.9, 0.999, 0.05, 1e-8,
                      false, false);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(parameters[i].tensor.detach(), weights[i], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
