#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/fused_block.h"
#include "models/gpt2_weights.h"

namespace lockstep {

/// The weights of a model as bfloat16, in one buffer.
class FusedWeights {
 public:
  /// Casts all weights, in one launch. The buffer is made anew where the weights lie elsewhere than
  /// last time, which must not happen while a CUDA graph is recorded.
  void refresh(const Gpt2Weights& weights);

  /// The head's rows are padded with zeros to a multiple of this: what products like.
  static constexpr std::int64_t kRowMultiple = 128;

  const at::Tensor& wte() const { return wte_; }
  const at::Tensor& wpe() const { return wpe_; }
  const FusedBlockWeights& block(std::size_t i) const { return blocks_.at(i); }
  const at::Tensor& ln_f() const { return ln_f_; }
  const at::Tensor& ln_f_bias() const { return ln_f_bias_; }
  const at::Tensor& head() const { return head_; }  // with padding

 private:
  void place(const Gpt2Weights& weights);

  std::vector<const void*> sources_;
  at::Tensor flat_;
  at::Tensor parts_;  // kernels::CastPart, as bytes on the device
  int part_count_ = 0;
  std::int64_t pieces_ = 0;
  at::Tensor wte_, wpe_, ln_f_, ln_f_bias_, head_;
  std::vector<FusedBlockWeights> blocks_;
};

}  // namespace lockstep
