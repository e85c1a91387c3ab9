#pragma once

#include "kernels/unfinished_sums.h"

namespace lockstep::kernels {

/// Rows of bfloat16, each normalised over its columns: a multiple of 8, up to 2048. Statistics and
/// sums are float32.
struct LayerNormShape {
  int rows = 0;
  int columns = 0;
};

/// out = (x - mean) * rstd * gamma + beta, with mean and rstd of each row kept for backward.
///
/// With `addend` the rows that are normalised are x + addend, rounded to bfloat16, and written to
/// `sum`; both may be null.
struct LayerNormForward {
  const Bf16* x = nullptr;
  const Bf16* addend = nullptr;
  const Bf16* gamma = nullptr;
  const Bf16* beta = nullptr;
  Bf16* sum = nullptr;
  Bf16* out = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;
  float epsilon = 1e-5f;
};
void layer_norm_forward(const LayerNormForward& pass, LayerNormShape shape, Stream stream);

/// dx = the gradient through the norm, plus `residual` (the gradient that goes past it) where
/// given. In the same pass over the rows: the gradients of gamma and beta, and the column sums of
/// dx, which are the gradient of the bias that was added just before (null where there is none).
/// With `factors`, rows of dout are multiplied by one each before all else.
///
/// The sums are left to be finished. `partial` is scratch of layer_norm_backward_scratch() floats,
/// until then. Sums are taken in an order that
/// depends on the shape and the device only. dx may be `residual`'s memory.
struct LayerNormBackward {
  const Bf16* dout = nullptr;
  const float* factors = nullptr;
  const Bf16* x = nullptr;  // what was normalised
  const Bf16* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const Bf16* residual = nullptr;
  Bf16* dx = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  float* dbias = nullptr;
  float* partial = nullptr;
};
std::int64_t layer_norm_backward_scratch(LayerNormShape shape);
[[nodiscard]] UnfinishedSums layer_norm_backward(const LayerNormBackward& pass,
                                                 LayerNormShape shape, Stream stream);

}  // namespace lockstep::kernels
