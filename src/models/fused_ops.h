#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "kernels/gemm.h"
#include "kernels/unfinished_sums.h"

/// Our kernels and cublasLt's products on tensors: rows of bfloat16 [tokens, columns], on the
/// current stream. Weights are bfloat16 in Conv1D's layout, [in, out]; their gradients are float32.
namespace lockstep::fused {

kernels::Bf16* bits(const at::Tensor& tensor);
float* floats(const at::Tensor& tensor);
kernels::Stream stream();

at::Tensor empty_rows(const at::Tensor& like, std::int64_t columns);
at::Tensor empty_floats(const at::Tensor& like, at::IntArrayRef sizes);

/// The layer norm of each row; `mean` and `rstd` are for norm_gradients().
at::Tensor norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                double epsilon, at::Tensor& mean, at::Tensor& rstd);

/// Column sums that are still to be finished, on any stream, and the memory that this needs.
struct Unfinished {
  kernels::UnfinishedSums sums;
  at::Tensor partial;

  /// On the current stream.
  void finish() const;
};

struct NormGradients {
  at::Tensor x, gamma, beta, bias;
  Unfinished unfinished;  // all but x
};

/// `past` is the gradient that goes by the norm, and `factors` what rows of `gradient` are to be
/// multiplied by, each undefined where there are none; `bias` has the column sums of the result.
NormGradients norm_gradients(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& gamma, const at::Tensor& mean,
                             const at::Tensor& rstd, const at::Tensor& past,
                             const at::Tensor& factors = {});

/// x * weight + bias, with what the epilogue adds to it.
at::Tensor linear(kernels::Gemm& gemm, const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& addend = {},
                  const at::Tensor& before_gelu = {});

/// gradient * weight^T: the gradient of what went into linear().
at::Tensor linear_input_gradient(kernels::Gemm& gemm, const at::Tensor& gradient,
                                 const at::Tensor& weight, const at::Tensor& before_gelu = {});

/// x^T * gradient, in float32.
at::Tensor linear_weight_gradient(kernels::Gemm& gemm, const at::Tensor& x,
                                  const at::Tensor& gradient);

/// The column sums, in float32.
at::Tensor bias_gradient(const at::Tensor& gradient);

/// Rows of bfloat16, and their column sums.
struct Summed {
  at::Tensor rows, sums;
  std::optional<Unfinished> unfinished = std::nullopt;
};

/// Of the bias of queries, keys and values, whose gradients are `qkv` (kernels/column_sum.h), of
/// which the sums of queries may be unfinished: `projected_sums` are the column sums of what the
/// projection's result gets.
at::Tensor attention_bias_gradient(const Summed& qkv, const at::Tensor& projected_sums,
                                   const at::Tensor& projection);

/// Three matrices beside each other.
Summed join(const std::array<at::Tensor, 3>& parts);

/// The gradient of what went into a GELU; its sums are unfinished.
Summed gelu_gradient(const at::Tensor& gradient, const at::Tensor& before_gelu);

}  // namespace lockstep::fused
