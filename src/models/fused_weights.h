#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/fused_block.h"
#include "models/gpt2_weights.h"
#include "optim/weight_copies.h"

namespace lockstep {

/// The weights of a model as bfloat16, in one buffer.
class FusedWeights {
 public:
  /// Casts all weights, in one launch, unless optimizers keep the copies current (KeptCopies). The
  /// buffer is made anew where the weights lie elsewhere than last time, which must not happen
  /// while a CUDA graph is recorded.
  void refresh(const Gpt2Weights& weights);

  /// Casts them where one was changed by other than an optimizer that keeps its copy current.
  void refresh_stale();

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
  bool is_current() const;
  bool is_written() const;
  void cast();

  std::vector<const void*> sources_;
  at::Tensor flat_;
  std::vector<std::shared_ptr<WeightCopy>> copies_;
  at::Tensor parts_;  // kernels::CastPart, as bytes on the device
  int part_count_ = 0;
  std::int64_t pieces_ = 0;
  at::Tensor wte_, wpe_, ln_f_, ln_f_bias_, head_;
  std::vector<FusedBlockWeights> blocks_;
};

}  // namespace lockstep
