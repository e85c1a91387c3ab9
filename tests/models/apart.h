#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>

namespace lockstep::testing {

/// The largest difference, as a part of the largest value: values near zero have no digits to
/// compare.
inline double apart(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

}  // namespace lockstep::testing
