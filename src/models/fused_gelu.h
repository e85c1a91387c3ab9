#pragma once

#include "models/fused_ops.h"

/// The product before a GELU and the one after it, each with the GELU in its epilogue.
namespace lockstep::fused {

/// A GELU's result and what its gradient needs: the slope there, where our own products are used,
/// or else what went in.
struct Gelu {
  at::Tensor out;
  at::Tensor slope, before;
};

/// The GELU of x * weight + bias.
Gelu linear_gelu(kernels::Gemm& gemm, const at::Tensor& x, const at::Tensor& weight,
                 const at::Tensor& bias);

/// gradient * weight^T, through the GELU: the gradient of what went into it, where `weight` is that
/// of the product after it. The sums may be unfinished, or left to be done.
Summed gelu_input_gradient(kernels::Gemm& gemm, const at::Tensor& gradient,
                           const at::Tensor& weight, const Gelu& gelu);

}  // namespace lockstep::fused
