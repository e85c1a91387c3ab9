#include "lockstep/clip_grad.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "optim/tensor_groups.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> gradients_of(const std::vector<NamedParameter>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.layout() != at::kStrided) {
      throw InvalidArgument(concat("gradients: that of ", parameter.name,
                                   " is sparse; norms and scaling need dense ones"));
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// The norm of each gradient, all on the device of the first. The order is Python's.
at::Tensor norms_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const auto& positions : group_by_device_and_dtype(gradients)) {
    for (at::Tensor& norm : at::_foreach_norm(select(gradients, positions), norm_type)) {
      norms.push_back(norm.to(gradients.front().device()));
    }
  }
  return at::stack(norms);
}

at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double norm_type) {
  if (gradients.empty()) {
    return at::zeros({}, at::kFloat);
  }
  return at::linalg_vector_norm(norms_of(gradients, norm_type), norm_type);
}

void multiply(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  for (const auto& positions : group_by_device_and_dtype(gradients)) {
    const std::vector<at::Tensor> group = select(gradients, positions);
    at::_foreach_mul_(group, factor.to(group.front().device()));
  }
}

void check_finite(const std::vector<NamedParameter>& parameters, const at::Tensor& norm) {
  if (at::isfinite(norm).item<bool>()) {
    return;
  }
  const std::optional<std::string> culprit = non_finite_gradient(parameters);
  throw NonFiniteGradient(culprit
                              ? concat("gradients: that of ", *culprit, " is not finite")
                              : concat("gradients: all are finite, but their common norm is not"),
                          culprit.value_or(""));
}

// The product of both scales on the device of `like`; undefined where there is nothing to multiply
// with. At least float32: half precision would round 1 / count by parts of a percent.
at::Tensor combined_scale(double scale, const at::Tensor& scale_tensor, const at::Tensor& like) {
  const auto options =
      like.options().dtype(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (!scale_tensor.defined()) {
    return scale == 1.0 ? at::Tensor() : at::scalar_tensor(scale, options);
  }
  if (scale_tensor.numel() != 1) {
    throw InvalidArgument(concat("gradients: scale_tensor has ", scale_tensor.numel(),
                                 " elements; it must have one"));
  }
  const at::Tensor moved = scale_tensor.reshape({}).to(options);
  return scale == 1.0 ? moved : moved.mul(scale);
}

}  // namespace

// The quotient is a reciprocal times a number, as Python computes it.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
}

at::Tensor clip_grad_norm(const std::vector<NamedParameter>& parameters,
                          const ClipGradOptions& options) {
  const at::NoGradGuard no_grad;
  if (!(options.max_norm >= 0)) {
    throw InvalidArgument(
        concat("gradients: max_norm is ", options.max_norm, "; it cannot be negative"));
  }
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  at::Tensor norm = total_norm(gradients, options.norm_type);
  if (gradients.empty()) {
    return norm;
  }
  const at::Tensor scale = combined_scale(options.scale, options.scale_tensor, norm);
  if (scale.defined()) {
    norm = norm.mul(scale.abs());
  }
  if (options.error_if_nonfinite) {
    check_finite(parameters, norm);
  }
  // Multiplying by 1 where nothing is to be clipped is cheaper than asking the device whether.
  const at::Tensor factor = clip_factor(norm, options.max_norm);
  multiply(gradients, scale.defined() ? factor.mul(scale) : factor);
  return norm;
}

at::Tensor grad_norm(const std::vector<NamedParameter>& parameters, double norm_type) {
  const at::NoGradGuard no_grad;
  return total_norm(gradients_of(parameters), norm_type);
}

void clip_grad_value(const std::vector<NamedParameter>& parameters, double limit) {
  const at::NoGradGuard no_grad;
  if (!(limit >= 0)) {
    throw InvalidArgument(concat("gradients: limit is ", limit, "; it cannot be negative"));
  }
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  for (const auto& positions : group_by_device_and_dtype(gradients)) {
    const std::vector<at::Tensor> group = select(gradients, positions);
    at::_foreach_clamp_min_(group, -limit);
    at::_foreach_clamp_max_(group, limit);
  }
}

void scale_gradients(const std::vector<NamedParameter>& parameters, double scale,
                     const at::Tensor& scale_tensor) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) {
    return;
  }
  const at::Tensor factor = combined_scale(scale, scale_tensor, gradients.front());
  if (factor.defined()) {
    multiply(gradients, factor);
  }
}

at::Tensor found_non_finite(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  if (gradients.empty()) {
    return at::zeros({}, at::kFloat);
  }
  // The largest element, because the sum of squares of finite elements can overflow.
  return at::isfinite(norms_of(gradients, kInfinity)).all().logical_not().to(at::kFloat);
}

std::optional<std::string> non_finite_gradient(const std::vector<NamedParameter>& parameters) {
  if (found_non_finite(parameters).item<float>() == 0) {
    return std::nullopt;
  }
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) {
      return parameter.name;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
