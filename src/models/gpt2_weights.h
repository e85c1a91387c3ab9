#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/gpt2_block.h"

namespace lockstep {

/// The parameters of a GPT-2; they share their memory with the module's.
struct Gpt2Weights {
  at::Tensor wte;
  at::Tensor wpe;
  std::vector<BlockWeights> blocks;
  WeightAndBias ln_f;
  at::Tensor lm_head;  // undefined where tied

  bool is_tied() const { return !lm_head.defined(); }
  const at::Tensor& head() const { return is_tied() ? wte : lm_head; }
};

}  // namespace lockstep
