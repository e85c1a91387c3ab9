#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/gpt2.h"
#include "models/gpt2_weights.h"

namespace lockstep {

/// GPT-2's loss on a GPU by kernels of our own, cublasLt and cuDNN, with bfloat16 between them: the
/// fast way for float32 weights under autocast to bfloat16.
///
/// The weights are cast once per forward. Each block is one node of the graph, so that its
/// gradients are ready, and can be reduced, while backward goes on with the block below. Between
/// blocks the residual stream is bfloat16, where autocast keeps float32; sums are float32
/// everywhere.
///
/// Nothing here waits for the device, but for the first call for a shape, which tries algorithms.
/// Thread rule: one thread at a time; backward on autograd's thread counts as its caller's.
class FusedGpt2 {
 public:
  FusedGpt2();
  ~FusedGpt2();

  /// Why this model does not compute these ids here; empty where it does.
  static std::string objection(const Gpt2Config& config, const Gpt2Weights& weights,
                               const at::Tensor& ids, bool is_training);

  /// The loss as Gpt2Impl::forward(ids, labels) has it. Its graph allows one backward.
  Gpt2Loss loss(const Gpt2Config& config, const Gpt2Options& options, const Gpt2Weights& weights,
                const at::Tensor& ids, const at::Tensor& labels);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
