#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

class CrossEntropyKernel : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(CrossEntropyKernel, LossAndGradientAreThoseOfAten) {
  const auto [vocabulary, stride] = GetParam();
  const int rows = by_device(37, 7);
  torch::manual_seed(vocabulary);
  const at::Tensor logits = random_bf16({rows, stride}, 4.0);
  const at::Tensor labels = copy_of(torch::randint(vocabulary, {rows}, at::kLong).to(kDevice));
  labels[5] = -100;
  labels[0] = vocabulary - 1;
  labels[1] = 0;
  const at::Tensor exact_logits = logits.narrow(1, 0, vocabulary).to(at::kDouble).requires_grad_();
  const at::Tensor exact = at::cross_entropy_loss(exact_logits, labels, {}, at::Reduction::None);
  exact.sum().backward();

  for (const float scale : {1.0f, 0.125f}) {
    const at::Tensor place = copy_of(logits);
    const at::Tensor losses = empty_f32({rows});
    kernels::cross_entropy({.logits = bf16(place),
                            .labels = labels.data_ptr<std::int64_t>(),
                            .losses = f32(losses),
                            .rows = rows,
                            .vocabulary = vocabulary,
                            .stride = stride,
                            .scale = scale},
                           current_stream());
    EXPECT_LE((losses.to(at::kDouble) - exact).abs().max().item<double>(), 2e-5);
    EXPECT_EQ(losses[5].item<float>(), 0.0f);
    // Softmax has float32's digits before it is rounded: exp2 is good to two units there.
    EXPECT_LE(roundings(place.narrow(1, 0, vocabulary), exact_logits.grad() * scale, 1e-7), 1.01);
    EXPECT_EQ(place.narrow(1, vocabulary, stride - vocabulary).count_nonzero().item<int>(), 0);
    EXPECT_EQ(place[5].count_nonzero().item<int>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyKernel,
                         ::testing::Values(std::pair{1, 8}, std::pair{16, 24}, std::pair{203, 208},
                                           std::pair{4096, 4096}, std::pair{50257, 50304},
                                           std::pair{50257, 50264},
                                           // Too wide for a Hopper's shared memory, and so read
                                           // twice; the vocabulary ends where a pack does or not.
                                           std::pair{120000, 120064}, std::pair{120001, 120064}));

TEST(CrossEntropyKernel, BearsLogitsOfAnySize) {
  const at::Tensor logits = copy_of(torch::full({2, 16}, -1e30, kDevice).to(at::kBFloat16));
  logits[0][3] = 3e38;
  const at::Tensor labels = torch::tensor({3, 4}, at::kLong).to(kDevice);
  const at::Tensor losses = empty_f32({2});
  kernels::cross_entropy({.logits = bf16(logits),
                          .labels = labels.data_ptr<std::int64_t>(),
                          .losses = f32(losses),
                          .rows = 2,
                          .vocabulary = 16,
                          .stride = 16},
                         current_stream());
  EXPECT_EQ(losses[0].item<float>(), 0.0f);
  EXPECT_NEAR(losses[1].item<float>(), std::log(16.0), 1e-5);
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
}

TEST(CrossEntropyKernel, TellsOfLabelsThatAreNotInTheVocabulary) {
  const at::Tensor logits = copy_of(random_bf16({5, 24}));
  const at::Tensor labels = torch::tensor({-3, 20, 24, -100, 19}, at::kLong).to(kDevice);
  const at::Tensor losses = empty_f32({5});
  kernels::cross_entropy({.logits = bf16(logits),
                          .labels = labels.data_ptr<std::int64_t>(),
                          .losses = f32(losses),
                          .rows = 5,
                          .vocabulary = 20,
                          .stride = 24},
                         current_stream());
  const at::Tensor expected = torch::tensor({true, true, true, false, false}).to(kDevice);
  EXPECT_TRUE(losses.isnan().equal(expected));
  EXPECT_EQ(logits.narrow(0, 0, 4).count_nonzero().item<int>(), 0);
  EXPECT_GT(logits[4].count_nonzero().item<int>(), 0);
}

}  // namespace
