#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// out[c] = the sum of x[r, c] over all rows, in float32 and in an order that depends on the shape
/// and the device only: the gradient of a bias. `partial` is scratch of column_sum_scratch()
/// floats. Columns are a multiple of 8.
std::int64_t column_sum_scratch(int rows, int columns);
void column_sum(const Bf16* x, float* out, float* partial, int rows, int columns, Stream stream);

}  // namespace lockstep::kernels
