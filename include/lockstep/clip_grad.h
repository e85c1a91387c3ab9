#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"

namespace lockstep {

/// A gradient is infinite or not a number. Names the first parameter of which that holds.
class NonFiniteGradient : public Error {
 public:
  NonFiniteGradient(const std::string& message, std::string parameter)
      : Error(message), parameter_(std::move(parameter)) {}
  const std::string& parameter() const { return parameter_; }

 private:
  std::string parameter_;
};

struct ClipGradOptions {
  double max_norm = 1.0;
  double norm_type = 2.0;  // infinity for the largest element
  /// Throw NonFiniteGradient instead of multiplying with what is not finite. Waits for the device.
  bool error_if_nonfinite = false;
  /// All gradients are multiplied by it first, in the same pass: 1 / count makes means of sums.
  double scale = 1.0;
  /// A factor on the device, a tensor of one element, besides `scale`.
  at::Tensor scale_tensor = {};
};

/// Multiplies all gradients by one factor, so that their common norm is at most `max_norm`. Returns
/// the norm before clipping (after scaling), on the device of the first gradient: the host does not
/// wait for it. Without a scale the bits are those of torch.nn.utils.clip_grad_norm_.
at::Tensor clip_grad_norm(const std::vector<NamedParameter>& parameters,
                          const ClipGradOptions& options);

/// What clip_grad_norm() multiplies gradients of this norm by: below 1 where it is above
/// `max_norm`.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// The norm that clip_grad_norm() would return without a scale. Changes nothing.
at::Tensor grad_norm(const std::vector<NamedParameter>& parameters, double norm_type = 2.0);

/// Limits every element to [-limit, limit], as torch.nn.utils.clip_grad_value_.
void clip_grad_value(const std::vector<NamedParameter>& parameters, double limit);

/// Multiplies all gradients by `scale`, and by `scale_tensor` where it is defined.
void scale_gradients(const std::vector<NamedParameter>& parameters, double scale,
                     const at::Tensor& scale_tensor = {});

/// A float32 tensor on the device of the first gradient: 1 where a gradient is not finite, else 0.
/// The host does not wait. Ranks combine it by ReduceOp::max.
at::Tensor found_non_finite(const std::vector<NamedParameter>& parameters);

/// The first parameter whose gradient is not finite. Waits for the device once; only where there is
/// one is each gradient looked at.
std::optional<std::string> non_finite_gradient(const std::vector<NamedParameter>& parameters);

}  // namespace lockstep
