#include "kernels/column_sum.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

// Against ATen in float64, which starts from the same bfloat16s.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

class ColumnSumKernel : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ColumnSumKernel, SumsColumnsOfAnyWidth) {
  const auto [rows, width] = GetParam();
  for (const int factor : by_device<std::vector<int>>({1, 3, 4}, {1, 3})) {
    const int columns = factor * width;
    const at::Tensor x = random_bf16({rows, columns});
    const at::Tensor out = empty_f32({columns});
    const at::Tensor partial = empty_f32({kernels::column_sum_scratch(rows, columns)});
    kernels::column_sum(bf16(x), f32(out), f32(partial), rows, columns, current_stream());
    const double size = std::sqrt(static_cast<double>(rows));
    EXPECT_LE(roundings(out, x.to(at::kDouble).sum(0), size), 1e-3) << columns;
  }
}

TEST_P(ColumnSumKernel, ThreeMatricesAreJoinedAndSummed) {
  const auto [rows, width] = GetParam();
  const std::vector<at::Tensor> parts = {random_bf16({rows, width}), random_bf16({rows, width}),
                                         random_bf16({rows, width})};
  const at::Tensor out = empty_bf16({rows, 3 * width}), sums = empty_f32({3 * width});
  const at::Tensor partial = empty_f32({kernels::column_sum_scratch(rows, 3 * width)});
  kernels::join_columns({.parts = {bf16(parts[0]), bf16(parts[1]), bf16(parts[2])},
                         .out = bf16(out),
                         .sums = f32(sums),
                         .partial = f32(partial)},
                        rows, width, current_stream());
  const at::Tensor joined = torch::cat(parts, 1);
  EXPECT_TRUE(out.equal(joined));
  const double size = std::sqrt(static_cast<double>(rows));
  EXPECT_LE(roundings(sums, joined.to(at::kDouble).sum(0), size), 1e-3);
}

TEST_P(ColumnSumKernel, TheBiasOfAttentionGetsTheSumsOfThreeGradients) {
  const auto [rows, width] = GetParam();
  const at::Tensor gradient = random_bf16({rows, 3 * width});
  const at::Tensor projected_sums = copy_of(torch::randn({width}, kDevice));
  const at::Tensor projection = random_bf16({width, width});
  const at::Tensor out = empty_f32({3 * width});
  const at::Tensor partial = empty_f32({kernels::column_sum_scratch(rows, width)});
  kernels::attention_bias_gradient({.qkv_gradient = bf16(gradient),
                                    .queries = {},
                                    .projected_sums = f32(projected_sums),
                                    .projection = bf16(projection),
                                    .out = f32(out),
                                    .partial = f32(partial)},
                                   rows, width, current_stream());
  const at::Tensor exact =
      torch::cat({gradient.narrow(1, 0, width).to(at::kDouble).sum(0),
                  torch::zeros({width}, at::TensorOptions(kDevice).dtype(at::kDouble)),
                  at::mv(projection.to(at::kDouble), projected_sums.to(at::kDouble))});
  const double size = std::sqrt(static_cast<double>(std::max(rows, width)));
  EXPECT_LE(roundings(out, exact, size), 1e-3);
  EXPECT_EQ(out.narrow(0, width, width).count_nonzero().item<int>(), 0);

  // The same with sums of queries that someone else has made, in three parts.
  const at::Tensor sums = copy_of(torch::randn({3, width}, kDevice)),
                   again = empty_f32({3 * width});
  kernels::attention_bias_gradient(
      {.queries = {.partial = f32(sums), .blocks = 3, .columns = width},
       .projected_sums = f32(projected_sums),
       .projection = bf16(projection),
       .out = f32(again)},
      rows, width, current_stream());
  EXPECT_LE(roundings(again.narrow(0, 0, width), sums.to(at::kDouble).sum(0), 1), 1e-3);
  EXPECT_TRUE(again.narrow(0, width, 2 * width).equal(out.narrow(0, width, 2 * width)));
}

TEST_P(ColumnSumKernel, TheGradientThroughGeluIsSummed) {
  const auto [rows, columns] = GetParam();
  const at::Tensor gradient = random_bf16({rows, columns}),
                   before = random_bf16({rows, columns}, 2);
  const at::Tensor out = empty_bf16({rows, columns}), sums = empty_f32({columns});
  const at::Tensor partial = empty_f32({kernels::column_sum_scratch(rows, columns)});
  const auto unfinished = kernels::gelu_gradient({.gradient = bf16(gradient),
                                                  .before = bf16(before),
                                                  .out = bf16(out),
                                                  .sums = f32(sums),
                                                  .partial = f32(partial)},
                                                 rows, columns, current_stream());
  finish_sums(unfinished, current_stream());
  const at::Tensor exact =
      at::gelu_backward(gradient.to(at::kDouble), before.to(at::kDouble), "tanh");
  EXPECT_LE(roundings(out, exact, 1e-2), 1.05);
  const double size = std::sqrt(static_cast<double>(rows));
  EXPECT_LE(roundings(sums, out.to(at::kDouble).sum(0), size), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ColumnSumKernel, ::testing::ValuesIn(row_shapes()));

}  // namespace
