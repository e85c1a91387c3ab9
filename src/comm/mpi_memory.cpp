#include "comm/mpi_memory.h"

#include <optional>

#include <ATen/ops/view_as_real.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::optional<LockstepMpiType> reduced_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Bool:
      return kMpiU8;
    case c10::ScalarType::UInt16:
      return kMpiU16;
    case c10::ScalarType::UInt32:
      return kMpiU32;
    case c10::ScalarType::UInt64:
      return kMpiU64;
    case c10::ScalarType::Char:
      return kMpiI8;
    case c10::ScalarType::Short:
      return kMpiI16;
    case c10::ScalarType::Int:
      return kMpiI32;
    case c10::ScalarType::Long:
      return kMpiI64;
    case c10::ScalarType::Float:
      return kMpiF32;
    case c10::ScalarType::Double:
      return kMpiF64;
    default:
      return std::nullopt;
  }
}

// For truth values a sum is "or" and a product is "and".
LockstepMpiReduction mpi_reduction(c10d::ReduceOp::RedOpType kind, bool boolean,
                                   const char* operation) {
  switch (kind) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return boolean ? kMpiMax : kMpiSum;
    case c10d::ReduceOp::PRODUCT:
      return boolean ? kMpiMin : kMpiProduct;
    case c10d::ReduceOp::MIN:
      return kMpiMin;
    case c10d::ReduceOp::MAX:
      return kMpiMax;
    case c10d::ReduceOp::BAND:
      return kMpiBitAnd;
    case c10d::ReduceOp::BOR:
      return kMpiBitOr;
    case c10d::ReduceOp::BXOR:
      return kMpiBitXor;
    default:
      throw InvalidArgument(concat(operation, ": backend mpi does not know this ReduceOp"));
  }
}

}  // namespace

void check_for_mpi(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument(concat(operation, ": a tensor is undefined"));
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    throw InvalidArgument(concat(operation, ": backend mpi moves dense tensors of the CPU, not ",
                                 tensor.layout(), " ones of ", tensor.device().str(),
                                 "; use gloo"));
  }
}

void check_alike(const char* operation, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& like) {
  for (const at::Tensor& tensor : tensors) {
    check_for_mpi(operation, tensor);
    if (tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type()) continue;
    throw InvalidArgument(concat(operation, ": a tensor has ", tensor.numel(), " elements of ",
                                 tensor.scalar_type(), ", another ", like.numel(), " of ",
                                 like.scalar_type(), "; they must be alike"));
  }
}

at::Tensor solid(const at::Tensor& tensor) {
  return tensor.resolve_conj().resolve_neg().contiguous();
}

MovedType moved_type(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2:
      return {kMpiU16, 1};
    case 4:
      return {kMpiU32, 1};
    case 8:
      return {kMpiU64, 1};
    default:
      return {kMpiU8, tensor.element_size()};
  }
}

MpiReducible reducible(const char* operation, const at::Tensor& tensor,
                       c10d::ReduceOp::RedOpType kind) {
  check_for_mpi(operation, tensor);
  at::Tensor memory = solid(tensor);
  const bool half = memory.scalar_type() == at::kHalf || memory.scalar_type() == at::kBFloat16;
  if (half) memory = memory.to(at::kFloat);
  const bool adds = kind == c10d::ReduceOp::SUM || kind == c10d::ReduceOp::AVG;
  if (memory.is_complex() && adds) memory = at::view_as_real(memory);
  const bool bitwise =
      kind == c10d::ReduceOp::BAND || kind == c10d::ReduceOp::BOR || kind == c10d::ReduceOp::BXOR;
  const auto type = reduced_type(memory.scalar_type());
  if (!type || (bitwise && memory.is_floating_point())) {
    throw InvalidArgument(concat(operation, ": backend mpi cannot reduce elements of ",
                                 tensor.scalar_type(), " by this ReduceOp"));
  }
  const bool boolean = memory.scalar_type() == at::kBool;
  return {.memory = memory, .type = *type, .reduction = mpi_reduction(kind, boolean, operation)};
}

void divide_by(const at::Tensor& tensor, int ranks) {
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    tensor.floor_divide_(ranks);
  } else {
    tensor.div_(ranks);
  }
}

void put_received(const at::Tensor& tensor, const at::Tensor& memory) {
  if (memory.const_data_ptr() == tensor.const_data_ptr() &&
      memory.scalar_type() == tensor.scalar_type()) {
    return;
  }
  if (tensor.is_complex() && !memory.is_complex()) {
    at::view_as_real(tensor).copy_(memory);
  } else {
    tensor.copy_(memory);
  }
}

}  // namespace lockstep
