#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "comm/group_team.h"

namespace lockstep {

/// Operations of the shm backend as calls to a team, for whatever thread runs them. Arguments are
/// checked when one is made, on the caller's thread, and throw InvalidArgument.
namespace shm_operation {

using Tensors = std::vector<at::Tensor>;
using Call = std::function<void(GroupTeam&)>;

Call broadcast(const Tensors& tensors, int root);
Call all_reduce(const Tensors& tensors, const c10d::ReduceOp& op, int ranks);
Call reduce(const Tensors& tensors, const c10d::ReduceOp& op, int ranks, int root);
Call all_gather(const std::vector<Tensors>& outputs, const Tensors& inputs);
Call gather(const Tensors& outputs, const at::Tensor& input, int root);
Call scatter(const at::Tensor& output, const Tensors& inputs, int root);
Call reduce_scatter(const Tensors& outputs, const std::vector<Tensors>& inputs,
                    const c10d::ReduceOp& op, int ranks);
Call all_to_all(const Tensors& outputs, const Tensors& inputs);

/// Throws InvalidArgument unless the tensor is a dense one in this machine's memory.
void check_here(const char* operation, const at::Tensor& tensor);

/// The elements one after the other: the tensor itself, or a copy.
at::Tensor dense(const at::Tensor& tensor);

/// One tensor as parts for each rank: equal ones, or of so many rows each.
Tensors split(const char* operation, const at::Tensor& tensor, int ranks,
              const std::vector<std::int64_t>& rows = {});

}  // namespace shm_operation
}  // namespace lockstep
