#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// Adds the slots' contributions in slot order and divides by `divisor`; element by element, so
/// that the result does not depend on how a tensor is cut into pieces. bfloat16 and float16 are
/// added in float and rounded once.
///
/// `slots` and `out` are contiguous CPU tensors of one length and type; `out` may be one of them.
void ordered_mean(const std::vector<at::Tensor>& slots, double divisor, const at::Tensor& out);

/// The same for memory without tensors around it.
void ordered_mean(at::ScalarType type, const std::vector<const void*>& slots, std::int64_t count,
                  double divisor, void* out);

/// Throws InvalidArgument for a type that ordered_mean() does not add.
void check_ordered_type(at::ScalarType type);

}  // namespace lockstep
