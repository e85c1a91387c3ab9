#pragma once

#include <cstdint>
#include <utility>

#include <torch/torch.h>

namespace lockstep::testing {

/// Points of a line, and what learns it.
struct Line {
  std::int64_t count = 64;
  std::int64_t size() const { return count; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    const auto x = torch::full({2}, static_cast<double>(index % 8) / 8);
    return {x, 3 * x.narrow(0, 0, 1) - 1};
  }
};

inline torch::nn::Linear new_model() {
  torch::manual_seed(5);
  return torch::nn::Linear(2, 1);
}

inline constexpr auto kSquaredError = [](auto& model, const auto& batch) {
  return torch::mse_loss(model(batch.first), batch.second);
};

}  // namespace lockstep::testing
