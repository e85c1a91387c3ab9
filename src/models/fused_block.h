#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "models/fused_attention.h"
#include "models/fused_gelu.h"
#include "optim/side_stream.h"

namespace lockstep {

/// The twelve parameters of a block as bfloat16, in the order of BlockWeights::list().
struct FusedBlockWeights {
  at::Tensor ln_1, ln_1_bias;
  at::Tensor qkv, qkv_bias;
  at::Tensor projection, projection_bias;
  at::Tensor ln_2, ln_2_bias;
  at::Tensor up, up_bias;
  at::Tensor down, down_bias;
};

/// What computes products and attention.
struct FusedLibraries {
  kernels::Gemm gemm;
  kernels::Attention attention;
  SideStream side;  // for gradients of weights, until a block's backward ends
};

struct FusedBlockOptions {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  double attention_scale = 1;
  double epsilon = 1e-5;
  bool recompute = false;  // forward keeps what came in alone, and backward begins with it
};

/// What backward needs of a block's forward.
struct FusedBlockState {
  at::Tensor x;  // what came in
  at::Tensor normed_1, mean_1, rstd_1;
  at::Tensor qkv;
  fused::Attended attended;
  at::Tensor middle;  // x + attention
  at::Tensor normed_2, mean_2, rstd_2;
  fused::Gelu gelu;
};

/// One block of GPT-2 on rows of bfloat16 [batch * tokens, width], on the GPU: products by cublasLt
/// with their biases and residuals in the epilogues, those with a GELU and all else by our own
/// kernels, attention by cuDNN or our own. Neither writes into its arguments.
at::Tensor fused_block_forward(FusedLibraries& libraries, const at::Tensor& x,
                               const FusedBlockWeights& weights, const FusedBlockOptions& options,
                               FusedBlockState& state);

/// What comes back to a block: the gradient of its result and, where it is known, its column sums.
struct FusedUpstream {
  at::Tensor gradient;  // bfloat16
  at::Tensor sums;      // float32, or undefined
};

struct FusedBlockGradients {
  FusedUpstream x;
  std::array<at::Tensor, 12> of_weights;  // float32, in the order of BlockWeights::list()
};
FusedBlockGradients fused_block_backward(FusedLibraries& libraries, const FusedUpstream& upstream,
                                         const FusedBlockWeights& weights,
                                         const FusedBlockOptions& options, FusedBlockState& state);

}  // namespace lockstep
