#include "models/cpu_functions.h"

#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "models/causal_attention.h"
#include "models/small_product.h"
#include "models/vector_loops.h"
#include "tests/models/apart.h"

using namespace lockstep;
using lockstep::testing::apart;

namespace {

struct WithGradient {
  at::Tensor out;
  at::Tensor gradient;
};

// Straight from the formula, in double.
WithGradient reference_attention(const at::Tensor& qkv, const at::Tensor& upstream,
                                 std::int64_t heads, double scale,
                                 const at::Tensor& factors = torch::ones({1}, torch::kDouble)) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  const at::Tensor input = qkv.detach().to(torch::kDouble).requires_grad_();
  const auto parts = input.view({batch, tokens, 3, heads, width / heads}).unbind(2);
  const at::Tensor query = parts[0].transpose(1, 2), key = parts[1].transpose(1, 2);
  const at::Tensor mask = torch::ones({tokens, tokens}, torch::kBool).tril().logical_not();
  const at::Tensor scores =
      (torch::matmul(query, key.transpose(-1, -2)) * scale).masked_fill(mask, -INFINITY);
  const at::Tensor mixed = torch::matmul(scores.softmax(-1) * factors, parts[2].transpose(1, 2));
  const at::Tensor out = mixed.transpose(1, 2).reshape({batch, tokens, width});
  out.backward(upstream.to(torch::kDouble));
  return {out.detach(), input.grad()};
}

}  // namespace

TEST(SmallProduct, equals_the_product_of_any_shape) {
  torch::manual_seed(1);
  for (const std::int64_t rows : {1, 5, 6, 7, 12, 33}) {
    for (const std::int64_t inner : {1, 3, 32}) {
      const std::int64_t columns = 32;
      const at::Tensor left = torch::randn({rows, inner}), right = torch::randn({inner, columns});
      const at::Tensor turned = left.t().contiguous();
      at::Tensor out = torch::full({rows, columns}, 7.f);
      const ProductSize size{.rows = rows, .columns = columns, .inner = inner};
      const Rows right_rows{.data = right.const_data_ptr<float>(), .row = columns};
      const OutputRows out_rows{.data = out.data_ptr<float>(), .row = columns};
      multiply(size, {.data = left.const_data_ptr<float>(), .row = inner, .inner = 1}, right_rows,
               out_rows);
      EXPECT_LT(apart(out, torch::mm(left, right)), 1e-5) << rows << " x " << inner;
      add_product(size, {.data = turned.const_data_ptr<float>(), .row = 1, .inner = rows},
                  right_rows, out_rows);
      EXPECT_LT(apart(out, 2 * torch::mm(left, right)), 1e-5) << rows << " x " << inner;
    }
  }
}

// Called directly: where ATen's are faster the model does not use them.
TEST(CausalAttention, equals_the_formula_and_its_gradient) {
  torch::manual_seed(2);
  for (const std::int64_t tokens : {1, 7, 16, 31, 33, 100}) {
    const std::int64_t heads = 3, batch = 2, size = 16;
    const at::Tensor qkv = torch::randn({batch, tokens, 3 * heads * size});
    const at::Tensor upstream = torch::randn({batch, tokens, heads * size});
    at::Tensor input = qkv.clone().requires_grad_();
    const at::Tensor out = fused_causal_attention(input, {.heads = heads, .scale = 0.25});
    out.backward(upstream);
    const WithGradient expected = reference_attention(qkv, upstream, heads, 0.25);
    EXPECT_LT(apart(out.detach(), expected.out), 1e-6) << tokens;
    EXPECT_LT(apart(input.grad(), expected.gradient), 2e-6) << tokens;
  }
}

// With values that are the identity, what comes out is what was looked at.
TEST(CausalAttention, dropout_is_that_of_the_formula_with_the_same_tokens_dropped) {
  const std::int64_t tokens = 64, heads = 2, batch = 2, size = 64;
  const FusedAttentionOptions options{.heads = heads, .scale = 0.125, .dropout = 0.25};
  const at::Tensor looking = torch::zeros({batch, tokens, 3, heads, size});
  looking.select(2, 2).copy_(torch::eye(tokens).unsqueeze(1));
  torch::manual_seed(3);
  const at::Tensor seen =
      fused_causal_attention(looking.view({batch, tokens, 3 * heads * size}), options)
          .view({batch, tokens, heads, tokens})
          .transpose(1, 2);
  const at::Tensor kept = seen.gt(0);
  const double past = static_cast<double>(batch * heads * tokens * (tokens + 1)) / 2;
  EXPECT_NEAR(kept.sum().item<double>() / past, 0.75, 0.02);
  EXPECT_FALSE(kept[0][0].equal(kept[0][1]));
  EXPECT_FALSE(kept[0][0].equal(kept[1][0]));

  const at::Tensor qkv = torch::randn({batch, tokens, 3 * heads * size});
  const at::Tensor upstream = torch::randn({batch, tokens, heads * size});
  at::Tensor input = qkv.clone().requires_grad_();
  torch::manual_seed(3);
  const at::Tensor out = fused_causal_attention(input, options);
  out.backward(upstream);
  const WithGradient expected =
      reference_attention(qkv, upstream, heads, 0.125, kept.to(torch::kDouble) / 0.75);
  EXPECT_LT(apart(out.detach(), expected.out), 1e-6);
  EXPECT_LT(apart(input.grad(), expected.gradient), 2e-6);
  EXPECT_FALSE(fused_causal_attention(qkv, options).equal(out.detach()));  // drawn anew
}

TEST(CausalAttention, large_scores_neither_overflow_nor_hide_a_nan) {
  at::Tensor qkv = torch::randn({1, 20, 48}) * 100;
  EXPECT_TRUE(fused_causal_attention(qkv, {.heads = 1, .scale = 1}).isfinite().all().item<bool>());
  qkv[0][5][20] = NAN;  // a key
  const at::Tensor out = fused_causal_attention(qkv, {.heads = 1, .scale = 1});
  EXPECT_TRUE(out[0].narrow(0, 0, 5).isfinite().all().item<bool>());
  EXPECT_TRUE(out[0].narrow(0, 5, 15).isnan().all().item<bool>());
}

TEST(CausalAttention, does_not_depend_on_the_number_of_threads) {
  const at::Tensor qkv = torch::randn({3, 50, 96});
  const int before = torch::get_num_threads();
  torch::set_num_threads(1);
  const at::Tensor alone = fused_causal_attention(qkv, {.heads = 2, .scale = 0.25});
  torch::set_num_threads(3);
  EXPECT_TRUE(fused_causal_attention(qkv, {.heads = 2, .scale = 0.25}).equal(alone));
  torch::set_num_threads(before);
}

TEST(CausalAttention, is_not_used_where_it_cannot_be) {
  EXPECT_EQ(can_fuse_attention(torch::zeros({1, 4, 96}), 2), causal_attention_is_fast());
  EXPECT_FALSE(can_fuse_attention(torch::zeros({1, 4, 96}), 4));
  EXPECT_FALSE(can_fuse_attention(torch::zeros({1, 4, 96}, torch::kBFloat16), 2));
}

TEST(Gelu, equals_atens_with_its_gradient) {
  at::Tensor x = torch::cat({torch::linspace(-15, 15, 10007), torch::tensor({-1e3f, 1e3f, 0.f})});
  x.requires_grad_();
  const at::Tensor out = fused_gelu_tanh(x);
  out.backward(torch::ones_like(x));
  const at::Tensor exact = x.detach().to(torch::kDouble).requires_grad_();
  const at::Tensor expected = at::gelu(exact, "tanh");
  expected.narrow(0, 0, 10007).backward(torch::ones({10007}, torch::kDouble));
  EXPECT_LT((out.detach() - expected.detach()).narrow(0, 0, 10007).abs().max().item<double>(),
            2e-6);
  EXPECT_LT((x.grad() - exact.grad()).narrow(0, 0, 10007).abs().max().item<double>(), 4e-6);
  EXPECT_NEAR(out[10007].item<float>(), 0, 1e-30);
  EXPECT_EQ(out[10008].item<float>(), 1e3f);
  EXPECT_EQ(out[10009].item<float>(), 0);
  EXPECT_TRUE(std::isnan(fused_gelu_tanh(torch::tensor({NAN})).item<float>()));
}

TEST(VectorLoops, any_count_is_handled) {
  for (std::int64_t count = 0; count < 70; ++count) {
    const at::Tensor values = torch::randn({count});
    at::Tensor powers = values.clone();
    const float top = largest(values.const_data_ptr<float>(), count);
    if (count == 0) continue;
    EXPECT_EQ(top, values.max().item<float>());
    const double sum = exponentials(powers.data_ptr<float>(), count, top);
    EXPECT_LT(apart(powers, (values - top).exp()), 1e-6);
    EXPECT_NEAR(sum, (values - top).exp().sum().item<double>(), 1e-4);
  }
}
