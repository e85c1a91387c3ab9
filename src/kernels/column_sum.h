#pragma once

#include "kernels/unfinished_sums.h"

namespace lockstep::kernels {

/// out[c] = the sum of x[r, c] over all rows, in float32 and in an order that depends on the shape
/// and the device only: the gradient of a bias. `partial` is scratch of column_sum_scratch()
/// floats. Columns are a multiple of 8.
std::int64_t column_sum_scratch(int rows, int columns);
void column_sum(const Bf16* x, float* out, float* partial, int rows, int columns, Stream stream);

/// Three matrices [rows, width] beside each other, out[rows, 3 * width], and the column sums of the
/// result: attention's gradients on their way to one product. `partial` is scratch of
/// column_sum_scratch(rows, 3 * width) floats. The width is a multiple of 8.
struct JoinColumns {
  const Bf16* parts[3] = {};
  Bf16* out = nullptr;
  float* sums = nullptr;
  float* partial = nullptr;
};
void join_columns(const JoinColumns& pass, int rows, int width, Stream stream);

/// The gradient of the bias [3 * width] of queries, keys and values, without reading all of theirs:
/// - queries: the column sums of their gradient, `qkv_gradient` [rows, 3 * width], first third;
/// - keys: 0, for a softmax stays the same when all keys move alike;
/// - values: the column sums of what attention's result gets, for a softmax's rows add up to 1.
/// These
///   are those of what the projection's result gets, `projected_sums` [width], through `projection`
///   [width, width].
/// `partial` is scratch of column_sum_scratch(rows, width) floats. The width is a multiple of 8.
///
/// Where the sums of queries are there but for the finish, they are `queries`, whose `out` is not
/// looked at, and neither `qkv_gradient` nor `partial` is needed.
struct AttentionBiasGradient {
  const Bf16* qkv_gradient = nullptr;
  UnfinishedSums queries;
  const float* projected_sums = nullptr;
  const Bf16* projection = nullptr;
  float* out = nullptr;
  float* partial = nullptr;
};
void attention_bias_gradient(const AttentionBiasGradient& pass, int rows, int width, Stream stream);

/// out = gradient * the derivative of GELU's tanh form at `before`, and the column sums of that,
/// which are left to be finished. `partial` is scratch of column_sum_scratch() floats.
struct GeluGradient {
  const Bf16* gradient = nullptr;
  const Bf16* before = nullptr;
  Bf16* out = nullptr;
  float* sums = nullptr;
  float* partial = nullptr;
};
[[nodiscard]] UnfinishedSums gelu_gradient(const GeluGradient& pass, int rows, int columns,
                                           Stream stream);

}  // namespace lockstep::kernels
