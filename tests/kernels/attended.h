#pragma once

#include <array>
#include <cmath>

#include "kernels/attention.h"
#include "tests/kernels/tensors.h"

namespace lockstep::testing {

/// Attention's result, and the gradient of what went in.
struct Attended {
  at::Tensor out, gradient;
};

/// Attention that starts from the same bfloat16s, by ATen in float64.
inline Attended attended_exactly(const kernels::AttentionShape& shape, const at::Tensor& qkv,
                                 const at::Tensor& gradient) {
  const at::Tensor exact = qkv.to(at::kDouble).requires_grad_();
  const at::Tensor parts = exact.view({shape.batch, shape.tokens, 3, shape.heads, shape.head_size});
  const auto part = [&](int i) { return parts.select(2, i).transpose(1, 2); };
  const at::Tensor mask =
      torch::ones({shape.tokens, shape.tokens}, at::kCUDA).to(at::kBool).tril().logical_not();
  const at::Tensor weights =
      at::softmax((at::matmul(part(0), part(1).transpose(2, 3)) * static_cast<double>(shape.scale))
                      .masked_fill(mask, -INFINITY),
                  -1);
  const at::Tensor out = at::matmul(weights, part(2)).transpose(1, 2).reshape(gradient.sizes());
  out.backward(gradient.to(at::kDouble));
  return {.out = out.detach(), .gradient = exact.grad()};
}

inline at::Tensor empty_bytes(std::int64_t count) {
  return torch::empty({count}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

}  // namespace lockstep::testing
