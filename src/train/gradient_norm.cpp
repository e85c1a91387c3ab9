#include "train/gradient_norm.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/clip_grad.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSmall = 16384;  // elements

// Several sums at a time, because an addition has to wait for the one before it. In double the
// squares of floats cannot overflow.
double sum_of_squares(const float* values, std::int64_t count) {
  std::array<double, 4> sums = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (; i < count; ++i) sums[0] += double{values[i]} * values[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Nothing where the gradients are many, or not plain numbers in this process's memory.
std::optional<double> norm_of_small(const std::vector<NamedParameter>& parameters) {
  std::int64_t elements = 0;
  double sum = 0;
  for (const NamedParameter& parameter : parameters) {
    elements += parameter.tensor.numel();
    if (elements > kSmall) return std::nullopt;
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided || !gradient.is_cpu() ||
        gradient.scalar_type() != at::kFloat || !gradient.is_contiguous()) {
      return std::nullopt;
    }
    sum += sum_of_squares(gradient.const_data_ptr<float>(), gradient.numel());
  }
  return std::sqrt(sum);
}

}  // namespace

double gradient_norm(const std::vector<NamedParameter>& parameters) {
  if (const auto norm = norm_of_small(parameters)) return *norm;
  return grad_norm(parameters).item<double>();
}

}  // namespace lockstep
