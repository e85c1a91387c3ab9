#pragma once

#include "optim/fused_step.h"

namespace lockstep {

/// Does a batch's step by our own kernel, whose options these are, where it fits: float32 on a GPU
/// that it was compiled for, without amsgrad, maximize and a gradient scale. Otherwise it does
/// nothing and returns false, and ATen's kernel is to do it.
bool step_on_gpu(const FusedBatch& batch, const AdamWOptions& options);

}  // namespace lockstep
