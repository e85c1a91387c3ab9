#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Makes the columns of each matrix of the batch orthonormal, in place, by the operations of
/// Python's powerSGD_hook: Gram-Schmidt up to two columns and for 16-bit types, otherwise QR. A
/// column of zeros stays one where Python's becomes NaN.
void orthogonalize(const at::Tensor& matrices, double epsilon);

}  // namespace lockstep
