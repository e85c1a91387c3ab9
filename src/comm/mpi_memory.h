#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "comm/mpi_plugin.h"

namespace lockstep {

/// Tensors as the memory that MPI moves and reduces.

/// Throws InvalidArgument for tensors that are not dense ones of the CPU.
void check_for_mpi(const char* operation, const at::Tensor& tensor);

/// The same, and each must have as many elements as `like`, of its type.
void check_alike(const char* operation, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& like);

/// The elements one after the other: the tensor itself, or a copy.
at::Tensor solid(const at::Tensor& tensor);

/// How elements are called that are only moved: by their size.
struct MovedType {
  LockstepMpiType type = kMpiU8;
  std::int64_t per_element = 1;
};
MovedType moved_type(const at::Tensor& tensor);

/// A tensor as MPI can reduce it: itself, or a copy.
struct MpiReducible {
  at::Tensor memory;
  LockstepMpiType type{};
  LockstepMpiReduction reduction{};
};
/// Throws InvalidArgument for types and operations that MPI does not have.
MpiReducible reducible(const char* operation, const at::Tensor& tensor,
                       c10d::ReduceOp::RedOpType kind);

void divide_by(const at::Tensor& tensor, int ranks);

/// What was received goes from `memory` to where it belongs.
void put_received(const at::Tensor& tensor, const at::Tensor& memory);

}  // namespace lockstep
