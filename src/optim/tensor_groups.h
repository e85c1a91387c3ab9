#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Positions of tensors that share device and dtype, which is what one call of a fused or foreach
/// kernel takes. The groups come in the order of Python's _group_tensors_by_device_and_dtype, on
/// which the last bits of a norm over several groups depend.
std::vector<std::vector<std::size_t>> group_by_device_and_dtype(
    const std::vector<at::Tensor>& tensors);

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::size_t>& positions);

}  // namespace lockstep
