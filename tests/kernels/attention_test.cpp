#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "kernels/column_sum.h"
#include "tests/kernels/attended.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

Attended by_cudnn(const kernels::AttentionShape& shape, const at::Tensor& qkv,
                  const at::Tensor& gradient) {
  kernels::Attention attention;
  EXPECT_TRUE(attention.takes(shape));
  if (::testing::Test::HasFailure()) return {};
  Attended found{.out = empty_bf16(gradient.sizes()), .gradient = empty_bf16(qkv.sizes())};
  const at::Tensor stats = empty_f32({shape.batch, shape.heads, shape.tokens});
  const at::Tensor first = empty_bytes(attention.forward_scratch(shape));
  attention.forward(shape, {.qkv = bf16(qkv), .out = bf16(found.out), .log_sum_exp = f32(stats)},
                    first.data_ptr(), current_stream());
  const at::Tensor second = empty_bytes(attention.backward_scratch(shape));
  attention.backward(shape,
                     {.qkv = bf16(qkv),
                      .out = bf16(found.out),
                      .log_sum_exp = f32(stats),
                      .gradient = bf16(gradient),
                      .qkv_gradient = bf16(found.gradient)},
                     second.data_ptr(), current_stream());
  torch::cuda::synchronize();
  return found;
}

class AttentionOnGpu : public ::testing::TestWithParam<kernels::AttentionShape> {};

TEST_P(AttentionOnGpu, HasFloat64sResultsAndGradients) {
  const kernels::AttentionShape shape = GetParam();
  const std::int64_t rows = shape.batch * shape.tokens, width = shape.heads * shape.head_size;
  torch::manual_seed(11);
  const at::Tensor qkv = random_bf16({rows, 3 * width}), gradient = random_bf16({rows, width});
  const Attended found = by_cudnn(shape, qkv, gradient);
  ASSERT_TRUE(found.out.defined());

  const Attended exact = attended_exactly(shape, qkv, gradient);
  EXPECT_LE(relative_error(found.out, exact.out), 6e-3);
  EXPECT_LE(relative_error(found.gradient, exact.gradient), 1e-2);
}

// The rule by which keys get 0 and values the sums of what comes back, on real gradients.
TEST_P(AttentionOnGpu, HasTheSumsOfItsGradients) {
  const kernels::AttentionShape shape = GetParam();
  const std::int64_t rows = shape.batch * shape.tokens, width = shape.heads * shape.head_size;
  torch::manual_seed(12);
  const at::Tensor qkv = random_bf16({rows, 3 * width});
  const at::Tensor projected =
      random_bf16({rows, width}) + 0.25;  // what the projection's result gets
  const at::Tensor projection = random_bf16({width, width}, 0.05);
  const at::Tensor gradient = at::matmul(projected, projection.t());
  const Attended found = by_cudnn(shape, qkv, gradient);
  ASSERT_TRUE(found.out.defined());

  const at::Tensor sums = projected.to(at::kFloat).sum(0), out = empty_f32({3 * width});
  const at::Tensor partial =
      empty_f32({kernels::column_sum_scratch(static_cast<int>(rows), static_cast<int>(width))});
  kernels::attention_bias_gradient({.qkv_gradient = bf16(found.gradient),
                                    .queries = {},
                                    .projected_sums = f32(sums),
                                    .projection = bf16(projection),
                                    .out = f32(out),
                                    .partial = f32(partial)},
                                   static_cast<int>(rows), static_cast<int>(width),
                                   current_stream());
  const at::Tensor exact = found.gradient.to(at::kDouble).sum(0);
  const double size = exact.norm().item<double>();
  const auto third = [&](const at::Tensor& all, int i) { return all.narrow(0, i * width, width); };
  EXPECT_LE(relative_error(third(out, 0), third(exact, 0)), 1e-5);
  EXPECT_EQ(third(out, 1).abs().max().item<double>(), 0.0);
  EXPECT_LE(third(exact, 1).norm().item<double>(), 1e-2 * size);  // rounding alone
  EXPECT_LE(relative_error(third(out, 2), third(exact, 2)), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionOnGpu,
    ::testing::Values(
        kernels::AttentionShape{
            .batch = 2, .tokens = 256, .heads = 12, .head_size = 64, .scale = 0.125f},
        kernels::AttentionShape{
            .batch = 1, .tokens = 1024, .heads = 25, .head_size = 64, .scale = 0.125f},
        kernels::AttentionShape{
            .batch = 3, .tokens = 37, .heads = 2, .head_size = 64, .scale = 0.1f},
        kernels::AttentionShape{
            .batch = 2, .tokens = 160, .heads = 3, .head_size = 128, .scale = 0.08f}));

}  // namespace
