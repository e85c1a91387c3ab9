#include "ddp/orthogonalize.h"

#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>
#include <ATen/TensorOperators.h>

namespace lockstep {
namespace {

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const std::int64_t columns = matrices.size(2);
  for (std::int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    const at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, true);
    if (epsilon == 0) {
      column.div_(norm);
      column.masked_fill_(norm == 0, 0);
    } else {
      column.div_(norm + epsilon);
    }
    if (i + 1 == columns) continue;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, true) * column);
  }
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const bool half = matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16;
  if (matrices.size(2) <= 2 || half) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

}  // namespace lockstep
