#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "kernels/gemm.h"

namespace lockstep {

/// What a head's backward takes of its forward. Where there are factors, each row of `gradient` is
/// still to be multiplied with its own.
struct FusedHeadState {
  at::Tensor rows;      // what went into the head, times factors where there are any
  at::Tensor gradient;  // of logits
  at::Tensor factors;
};

/// The losses of rows [tokens, width] under a head [vocabulary and padding, width]. Labels are
/// int64 without gaps.
at::Tensor fused_head_forward(kernels::Gemm& gemm, const at::Tensor& rows, const at::Tensor& head,
                              const at::Tensor& labels, std::int64_t vocabulary,
                              FusedHeadState& state);

struct FusedHeadGradients {
  at::Tensor rows;  // still to be multiplied with the state's factors where there are any
  at::Tensor head;
};

/// Of the losses' sum times `factor`, one number. Gives up the state's gradient.
FusedHeadGradients fused_head_backward(kernels::Gemm& gemm, const at::Tensor& factor,
                                       const at::Tensor& head, FusedHeadState& state);

}  // namespace lockstep
