#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct SoftmaxGradientOptions {
  std::int64_t vocabulary = 0;  // columns from here on are padding and have probability 0
  bool wanted = true;           // false: the losses alone
};

/// Writes -log softmax(logits)[label] of each row into `losses` (float32), and returns the gradient
/// of their sum with respect to the logits: softmax, less one at the label. It takes the place of
/// the logits, which are gone afterwards. Where it is not wanted, what is returned means nothing.
at::Tensor softmax_gradient(const at::Tensor& logits, const at::Tensor& labels, at::Tensor losses,
                            const SoftmaxGradientOptions& options);

}  // namespace lockstep
