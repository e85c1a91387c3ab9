#include "kernels/head_loss.h"

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct HeadSize {
  int rows, width, vocabulary, stride;
};

/// A head and rows for it, in float64 and as the kernels take them.
struct Head {
  explicit Head(const HeadSize& size) : size(size) {
    torch::manual_seed(size.vocabulary);
    rows = random_bf16({size.rows, size.width});
    head = random_bf16({size.stride, size.width}, 2.0 / std::sqrt(size.width));
    labels = copy_of(torch::randint(size.vocabulary, {size.rows}, at::kLong).to(kDevice));
  }

  kernels::HeadRows of() const {
    return {.rows = bf16(rows),
            .head = bf16(head),
            .labels = labels.data_ptr<std::int64_t>(),
            .count = size.rows,
            .width = size.width,
            .vocabulary = size.vocabulary};
  }

  at::Tensor exact_logits() const {
    const at::Tensor used = head.narrow(0, 0, size.vocabulary).to(at::kDouble);
    return rows.to(at::kDouble).mm(used.t());
  }

  // What the product of tile_products.h does, with its columns in three parts.
  void find_exponentials() {
    shifts = empty_f32({size.rows});
    kernels::label_shifts(of(), f32(shifts), current_stream());
    const at::Tensor exponents = exact_logits() / std::log(2.0) - shifts.unsqueeze(1);
    const at::Tensor powers = at::exp2(exponents.to(at::kFloat));
    exponentials = copy_of(torch::zeros({size.rows, size.stride}, rows.options()));
    exponentials.narrow(1, 0, size.vocabulary).copy_(powers);
    partial = empty_f32({3, size.rows});
    const std::int64_t part = (size.vocabulary + 2) / 3;
    for (std::int64_t i = 0; i < 3; ++i) {
      const std::int64_t first = std::min<std::int64_t>(i * part, size.vocabulary);
      const std::int64_t count = std::min<std::int64_t>(part, size.vocabulary - first);
      partial[i].copy_(powers.narrow(1, first, count).sum(1));
    }
  }

  void finish() {
    losses = empty_f32({size.rows});
    factors = empty_f32({size.rows});
    scaled = empty_bf16(rows.sizes());
    kernels::finish_head_loss({.of = of(),
                               .partial = f32(partial),
                               .parts = 3,
                               .exponentials = bf16(exponentials),
                               .stride = size.stride,
                               .losses = f32(losses),
                               .factors = f32(factors),
                               .scaled = bf16(scaled)},
                              current_stream());
  }

  at::Tensor gradient() const {
    return exponentials.to(at::kDouble) * factors.to(at::kDouble).unsqueeze(1);
  }

  HeadSize size;
  at::Tensor rows, head, labels;
  at::Tensor shifts, exponentials, partial;
  at::Tensor losses, factors, scaled;
};

class HeadLossKernel : public ::testing::TestWithParam<HeadSize> {};

TEST_P(HeadLossKernel, LossAndGradientAreThoseOfAten) {
  Head head(GetParam());
  const auto [rows, width, vocabulary, stride] = GetParam();
  head.labels[0] = vocabulary - 1;
  const int ignored = rows / 2;
  if (rows > 1) head.labels[ignored] = -100;
  head.find_exponentials();
  head.finish();

  const at::Tensor logits = head.exact_logits().requires_grad_();
  const at::Tensor exact = at::cross_entropy_loss(logits, head.labels, {}, at::Reduction::None);
  exact.sum().backward();
  EXPECT_LE((head.losses - exact).abs().max().item<double>(), 2e-5);
  const at::Tensor gradient = head.gradient();
  EXPECT_LE(roundings(gradient.narrow(1, 0, vocabulary), logits.grad(), 1e-5), 1.05);
  EXPECT_EQ(gradient.narrow(1, vocabulary, stride - vocabulary).count_nonzero().item<int>(), 0);
  const at::Tensor scaled = head.rows.to(at::kDouble) * head.factors.unsqueeze(1);
  EXPECT_LE(((head.scaled - scaled).abs() / (scaled.abs() + 1e-30)).max().item<double>(),
            1 / 256.0);
  if (rows == 1) return;
  EXPECT_EQ(head.losses[ignored].item<float>(), 0.0f);
  EXPECT_EQ(head.factors[ignored].item<float>(), 0.0f);
  EXPECT_EQ(head.exponentials[ignored].count_nonzero().item<int>(), 0);
}

// One row and one token; rows that fill no block; GPT-2's own.
INSTANTIATE_TEST_SUITE_P(Sizes, HeadLossKernel,
                         ::testing::Values(HeadSize{1, 8, 1, 8}, HeadSize{32, 64, 60, 64},
                                           HeadSize{70, 264, 203, 256},
                                           HeadSize{by_device(500, 33), 768, by_device(50257, 1000),
                                                    by_device(50304, 1024)}));

TEST(HeadLossKernel, BearsLossesOfAnySize) {
  Head head({40, 64, 50, 64});
  // Losses of 70, which is not yet large, and 90, whose powers are finite; the others' are not.
  const std::vector<std::pair<int, double>> large = {{2, 0.55}, {8, 0.7}, {16, 1.0}, {35, 30.0}};
  head.head[20].fill_(-1.0);
  head.head[21].fill_(1.0);
  for (const auto& [row, value] : large) {
    head.rows[row].fill_(value);
    head.labels[row] = 20;
  }
  head.find_exponentials();
  const at::Tensor is_finite = head.partial.isfinite().all(0);
  EXPECT_TRUE(is_finite[8].item<bool>());
  EXPECT_FALSE(is_finite[16].item<bool>());
  EXPECT_FALSE(is_finite[35].item<bool>());
  head.finish();
  const at::Tensor logits = head.exact_logits().requires_grad_();
  const at::Tensor exact = at::cross_entropy_loss(logits, head.labels, {}, at::Reduction::None);
  exact.sum().backward();
  EXPECT_NEAR(exact[2].item<double>(), 70, 2);
  EXPECT_NEAR(exact[8].item<double>(), 90, 2);
  EXPECT_GT(exact[35].item<double>(), 1000);
  EXPECT_LE(((head.losses - exact).abs() / (exact + 1)).max().item<double>(), 4e-6);
  EXPECT_LE(roundings(head.gradient().narrow(1, 0, 50), logits.grad(), 1e-5), 1.05);
  EXPECT_TRUE(head.scaled.isfinite().all().item<bool>());
}

TEST(HeadLossKernel, TellsOfLabelsThatAreNotInTheVocabulary) {
  Head head({5, 16, 20, 24});
  head.labels.copy_(torch::tensor({-3, 20, 24, -100, 19}, at::kLong));
  head.find_exponentials();
  head.finish();
  const at::Tensor expected = torch::tensor({true, true, true, false, false}).to(kDevice);
  EXPECT_TRUE(head.losses.isnan().equal(expected));
  EXPECT_EQ(head.gradient().narrow(0, 0, 4).count_nonzero().item<int>(), 0);
  EXPECT_GT(head.gradient()[4].count_nonzero().item<int>(), 0);
}

}  // namespace
