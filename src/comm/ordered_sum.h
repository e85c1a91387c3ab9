#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Adds the slots' contributions in slot order and divides by `divisor`; element by element, so
/// that the result does not depend on how a tensor is cut into pieces. bfloat16 and float16 are
/// added in float and rounded once.
///
/// `slots` and `out` are contiguous CPU tensors of one length and type; `out` may be one of them.
void ordered_mean(const std::vector<at::Tensor>& slots, double divisor, const at::Tensor& out);

}  // namespace lockstep
