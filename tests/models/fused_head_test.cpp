#include "models/fused_head.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/tile_products.h"
#include "lockstep/gpt2.h"
#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kHeadWidth = 256, kVocabulary = 20000, kPadded = 20096;
constexpr std::int64_t kRowsForTiles = 700;
constexpr double kUpstream = 0.25;

// By how much a row's gradient may be further from the exact one than ATen's: where a label is
// unlikely, its probability minus 1 is a number of bfloat16, and minus the sum of a row's powers,
// which stands in its place, is rounded.
constexpr double kRoundingOfLabels = 0x1p-9;

// The losses and both gradients, by ATen's operators with products in this type.
std::vector<at::Tensor> head_by_aten(const at::Tensor& rows, const at::Tensor& head,
                                     const at::Tensor& labels, at::ScalarType type) {
  const at::Tensor in = rows.clone().to(type).requires_grad_();
  const at::Tensor weight = head.narrow(0, 0, kVocabulary).clone().to(type).requires_grad_();
  at::Tensor logits = in.mm(weight.t());
  if (type == at::kBFloat16) logits = logits.to(at::kFloat);
  const at::Tensor losses = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
  (losses.sum() * kUpstream).backward();
  return {losses.detach(), in.grad(), weight.grad()};
}

std::vector<at::Tensor> by_our_kernels(const at::Tensor& rows, const at::Tensor& head,
                                       const at::Tensor& labels) {
  kernels::Gemm gemm;
  FusedHeadState state;
  const at::Tensor losses = fused_head_forward(gemm, rows, head, labels, kVocabulary, state);
  const bool by_tiles = rows.size(0) >= kRowsForTiles &&
                        kernels::has_tile_products(rows.size(0), kPadded, kHeadWidth);
  EXPECT_EQ(state.factors.defined(), by_tiles);
  const at::Tensor upstream = torch::full({}, kUpstream, losses.options());
  const FusedHeadGradients gradients = fused_head_backward(gemm, upstream, head, state);
  EXPECT_EQ(
      gradients.head.narrow(0, kVocabulary, kPadded - kVocabulary).count_nonzero().item<int>(), 0);
  at::Tensor of_rows = gradients.rows.to(at::kDouble);
  if (by_tiles) of_rows = of_rows * state.factors.unsqueeze(1);
  return {losses, of_rows, gradients.head.narrow(0, 0, kVocabulary)};
}

// By rows: few, whose product is cublasLt's, and enough for our own.
class FusedHeadOnGpu : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(FusedHeadOnGpu, IsAsNearToFloat64AsAtenInBfloat16) {
  torch::manual_seed(6);
  const at::Tensor rows = random_bf16({GetParam(), kHeadWidth});
  // Likely tokens and unlikely ones, all with logits far from 0, as a trained model has them.
  const at::Tensor head = random_bf16({kPadded, kHeadWidth}, 0.2);
  head.narrow(0, kVocabulary, kPadded - kVocabulary).zero_();
  rows.narrow(1, 0, 1).fill_(20.0);
  head.narrow(1, 0, 1).fill_(-4.0);
  const at::Tensor labels =
      torch::randint(kVocabulary, {GetParam()}, at::TensorOptions(kDevice).dtype(at::kLong));
  labels.narrow(0, 3, 2).fill_(kIgnoredLabel);
  const int certain = 10;  // a row of which the label is known for sure
  head[labels[certain].item<std::int64_t>()] += 0.1 * rows[certain];

  const auto ours = by_our_kernels(rows, head, labels);
  const auto atens = head_by_aten(rows, head, labels, at::kBFloat16);
  const auto exact = head_by_aten(rows, head, labels, at::kDouble);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double of_labels = i == 1 ? kRoundingOfLabels : 0.0;
    const double allowed = std::hypot(1.05 * relative_error(atens[i], exact[i]), of_labels);
    EXPECT_LE(relative_error(ours[i], exact[i]), allowed) << i;
  }
  EXPECT_LT(exact[0][certain].item<double>(), 1e-4);
  for (const int i : {0, 1}) {
    EXPECT_LE((ours[i][certain] - exact[i][certain]).abs().max().item<double>(), 1e-3) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, FusedHeadOnGpu, ::testing::Values(40, kRowsForTiles));

}  // namespace
