#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// Softmax cross-entropy of rows of logits, and its gradient in the logits' place.
///
/// A row has `vocabulary` logits and `stride` elements, a multiple of 8; what lies between is
/// padding, which is ignored and becomes 0. `losses[row]` is log(sum(exp(logits))) - logits[label],
/// in float32; the row becomes (softmax - one_hot(label)) * scale. A row whose label is
/// `ignored_label` has loss 0 and gradient 0; one whose label is not in the vocabulary has gradient
/// 0 and a loss that is not a number, so that it is seen.
///
/// Each row is written once, and read once where it can stay on chip in between, which takes 2
/// bytes of shared memory an element: strides of up to 115,712 on an H100 or H200, 82,944 on an
/// A100, 50,176 on an RTX 30 or 40. Wider rows are read twice.
struct CrossEntropy {
  Bf16* logits = nullptr;
  const std::int64_t* labels = nullptr;
  float* losses = nullptr;
  int rows = 0;
  int vocabulary = 0;
  int stride = 0;
  float scale = 1.0f;
  std::int64_t ignored_label = -100;
};
void cross_entropy(const CrossEntropy& pass, Stream stream);

}  // namespace lockstep::kernels
