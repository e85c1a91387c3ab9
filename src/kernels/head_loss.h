#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

// Softmax cross-entropy of a head's logits without a pass over them. What the head's product leaves
// (tile_products.h) are powers of e instead, each row's divided by 2^29 times its label's, which is
// known beforehand: so they are numbers wherever the loss is below some 75, and what they add up to
// scales them to probabilities. The scale is not applied to them but to what they are multiplied
// with.
//
// In order: label_shifts(), exponential_product(), finish_head_loss().
//
// The label's logit is added up in another order beforehand than in the product. For logits around
// 100 the two are some 1e-4 apart, and so is a loss from what it should be: one near 0 may be
// below.

struct HeadRows {
  const Bf16* rows = nullptr;  // [count, width]
  const Bf16* head = nullptr;  // [vocabulary or more, width]
  const std::int64_t* labels = nullptr;
  int count = 0;
  int width = 0;  // a multiple of 8
  int vocabulary = 0;
  std::int64_t ignored_label = -100;
};

/// For exponential_product(). Of rows without a label of the vocabulary, all powers become 0.
void label_shifts(const HeadRows& of, float* shifts, Stream stream);

/// `losses[row]` becomes log(sum(exp(logits))) - logits[label]. The gradient of the sum of losses
/// with regard to logits is factors[row] * exponentials[row], of which that of the label is changed
/// here, each within one rounding of bfloat16; so the head's gradient is exponentials^T * scaled,
/// where `scaled` are rows times factors.
/// Losses and gradients of rows that are ignored are 0; where a label is not in the vocabulary, the
/// gradient is 0 and the loss not a number, so that it is seen.
///
/// A row whose loss is above some 75 is computed again, at leisure: that reads the head twice.
struct HeadLoss {
  HeadRows of;
  const float* partial = nullptr;  // [parts, count]
  int parts = 0;
  Bf16* exponentials = nullptr;  // [count, stride]
  int stride = 0;
  float* losses = nullptr;
  float* factors = nullptr;
  Bf16* scaled = nullptr;  // [count, width]
};
void finish_head_loss(const HeadLoss& pass, Stream stream);

}  // namespace lockstep::kernels
