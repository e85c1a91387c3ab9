#include "models/fused_block.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kTokens = 256, kWidth = 768, kHeads = 12;

at::Tensor normal(at::IntArrayRef sizes, double scale, double mean = 0) {
  return (torch::randn(sizes, at::kCUDA) * scale + mean).to(at::kBFloat16);
}

std::vector<at::Tensor> some_weights() {
  return {normal({kWidth}, 0.1, 1),           normal({kWidth}, 0.1),
          normal({kWidth, 3 * kWidth}, 0.03), normal({3 * kWidth}, 0.1),
          normal({kWidth, kWidth}, 0.03),     normal({kWidth}, 0.1),
          normal({kWidth}, 0.1, 1),           normal({kWidth}, 0.1),
          normal({kWidth, 4 * kWidth}, 0.03), normal({4 * kWidth}, 0.1),
          normal({4 * kWidth, kWidth}, 0.03), normal({kWidth}, 0.1)};
}

// The output and all gradients, by ATen's operators in this type.
std::vector<at::Tensor> by_aten(const at::Tensor& x, const at::Tensor& gradient,
                                const std::vector<at::Tensor>& weights, at::ScalarType type) {
  std::vector<at::Tensor> w;
  for (const at::Tensor& weight : weights) w.push_back(weight.to(type).requires_grad_());
  const at::Tensor in = x.to(type).requires_grad_();
  const at::Tensor normed = at::layer_norm(in, {kWidth}, w[0], w[1], 1e-5);
  const at::Tensor qkv =
      at::addmm(w[3], normed, w[2]).view({-1, kTokens, 3, kHeads, kWidth / kHeads});
  const auto heads = [&](int i) { return qkv.select(2, i).transpose(1, 2); };
  const at::Tensor mixed =
      at::scaled_dot_product_attention(heads(0), heads(1), heads(2), {}, 0, /*is_causal=*/true);
  const at::Tensor middle = in + at::addmm(w[5], mixed.transpose(1, 2).reshape({-1, kWidth}), w[4]);
  const at::Tensor inner =
      at::gelu(at::addmm(w[9], at::layer_norm(middle, {kWidth}, w[6], w[7], 1e-5), w[8]), "tanh");
  const at::Tensor out = middle + at::addmm(w[11], inner, w[10]);
  out.backward(gradient.to(type));
  std::vector<at::Tensor> result = {out.detach(), in.grad()};
  for (const at::Tensor& weight : w) result.push_back(weight.grad());
  return result;
}

// By batch: few rows, whose products are cublasLt's, and enough for our own.
class FusedBlockOnGpu : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(FusedBlockOnGpu, IsNearerToFloat64ThanAtenInBfloat16) {
  const std::int64_t batch = GetParam(), rows = batch * kTokens;
  torch::manual_seed(5);
  const std::vector<at::Tensor> w = some_weights();
  const at::Tensor x = random_bf16({rows, kWidth}), gradient = random_bf16({rows, kWidth});
  const FusedBlockWeights weights{w[0], w[1], w[2], w[3], w[4],  w[5],
                                  w[6], w[7], w[8], w[9], w[10], w[11]};
  FusedLibraries libraries;
  const FusedBlockOptions options{
      .batch = batch, .tokens = kTokens, .heads = kHeads, .attention_scale = 0.125};
  std::vector<at::Tensor> ours;
  {
    const at::NoGradGuard no_graph;
    FusedBlockState state;
    ours.push_back(fused_block_forward(libraries, x, weights, options, state));
    const FusedBlockGradients found =
        fused_block_backward(libraries, {gradient, {}}, weights, options, state);
    ours.push_back(found.x.gradient);
    ours.insert(ours.end(), found.of_weights.begin(), found.of_weights.end());
    EXPECT_LE(relative_error(found.x.sums, found.x.gradient.to(at::kDouble).sum(0)), 1e-2);
  }
  const auto exact = by_aten(x, gradient, w, at::kDouble);
  const auto rounded = by_aten(x, gradient, w, at::kBFloat16);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(relative_error(ours[i], exact[i]), relative_error(rounded[i], exact[i]))
        << "result " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Batches, FusedBlockOnGpu, ::testing::Values(2, 33));

}  // namespace
