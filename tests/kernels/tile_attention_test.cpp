#include "kernels/tile_attention.h"

#include <gtest/gtest.h>

#include "tests/kernels/attended.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Tiled {
  Attended attended;
  at::Tensor log_sum_exp;
  at::Tensor query_sums;  // of the gradient's columns
};

Tiled by_tiles(const kernels::AttentionShape& shape, const at::Tensor& qkv,
               const at::Tensor& gradient) {
  const Tiled found{
      .attended = {.out = empty_bf16(gradient.sizes()), .gradient = empty_bf16(qkv.sizes())},
      .log_sum_exp = empty_f32({shape.batch, shape.heads, shape.tokens}),
      .query_sums = empty_f32({shape.heads * shape.head_size})};
  kernels::tile_attention_forward(
      shape,
      {.qkv = bf16(qkv), .out = bf16(found.attended.out), .log_sum_exp = f32(found.log_sum_exp)},
      current_stream());
  const at::Tensor scratch = empty_bytes(kernels::tile_attention_scratch(shape));
  scratch.fill_(0xff);  // not a number: what was left in scratch must not matter
  const at::Tensor partial = empty_f32({kernels::tile_attention_sums(shape)}).fill_(NAN);
  kernels::UnfinishedSums sums =
      kernels::tile_attention_backward(shape,
                                       {.qkv = bf16(qkv),
                                        .out = bf16(found.attended.out),
                                        .log_sum_exp = f32(found.log_sum_exp),
                                        .gradient = bf16(gradient),
                                        .qkv_gradient = bf16(found.attended.gradient)},
                                       scratch.data_ptr(), f32(partial), current_stream());
  sums.out[0] = f32(found.query_sums);
  kernels::finish_sums(sums, current_stream());
  torch::cuda::synchronize();
  return found;
}

class TileAttentionOnGpu : public ::testing::TestWithParam<kernels::AttentionShape> {
 protected:
  void SetUp() override {
    if (!kernels::has_tile_attention(GetParam())) GTEST_SKIP() << "not a Hopper GPU";
    const kernels::AttentionShape shape = GetParam();
    const std::int64_t rows = shape.batch * shape.tokens, width = shape.heads * shape.head_size;
    torch::manual_seed(11);
    qkv = random_bf16({rows, 3 * width});
    gradient = random_bf16({rows, width});
  }

  at::Tensor qkv, gradient;
};

TEST_P(TileAttentionOnGpu, HasFloat64sResultsAndGradients) {
  const Tiled tiled = by_tiles(GetParam(), qkv, gradient);
  const Attended& found = tiled.attended;
  const Attended exact = attended_exactly(GetParam(), qkv, gradient);
  EXPECT_LE(relative_error(found.out, exact.out), 6e-3);
  const std::int64_t width = gradient.size(1);
  for (int part = 0; part < 3; ++part) {
    const auto third = [&](const at::Tensor& all) { return all.narrow(1, part * width, width); };
    EXPECT_LE(relative_error(third(found.gradient), third(exact.gradient)), 1e-2) << part;
  }
  // Of rows that were not yet rounded.
  const at::Tensor rounded = found.gradient.narrow(1, 0, width).to(at::kDouble);
  const double size = rounded.norm().item<double>();
  EXPECT_LE((tiled.query_sums - rounded.sum(0)).norm().item<double>(), 5e-3 * size);
}

TEST_P(TileAttentionOnGpu, HasTheSameBitsEveryTime) {
  const Tiled first = by_tiles(GetParam(), qkv, gradient);
  for (int i = 0; i < 3; ++i) {
    const Tiled again = by_tiles(GetParam(), qkv, gradient);
    EXPECT_TRUE(again.attended.out.equal(first.attended.out));
    EXPECT_TRUE(again.attended.gradient.equal(first.attended.gradient));
    EXPECT_TRUE(again.log_sum_exp.equal(first.log_sum_exp));
    EXPECT_TRUE(again.query_sums.equal(first.query_sums));
  }
}

kernels::AttentionShape shape_of(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                                 float scale = 0.125f) {
  return {.batch = batch, .tokens = tokens, .heads = heads, .head_size = 64, .scale = scale};
}

// One tile; an odd number of them; heads that two blocks share; several heads for a block; many.
INSTANTIATE_TEST_SUITE_P(Shapes, TileAttentionOnGpu,
                         ::testing::Values(shape_of(1, 128, 1), shape_of(3, 384, 2, 0.1f),
                                           shape_of(4, 1024, 12), shape_of(1, 1024, 25),
                                           shape_of(11, 512, 24), shape_of(50, 256, 12)));

TEST(TileAttention, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(kernels::has_tile_attention(shape_of(1, 100, 2)));
  EXPECT_FALSE(kernels::has_tile_attention(shape_of(0, 128, 2)));
  kernels::AttentionShape wide = shape_of(1, 128, 2);
  wide.head_size = 128;
  EXPECT_FALSE(kernels::has_tile_attention(wide));
  EXPECT_THROW(kernels::tile_attention_scratch(wide), std::invalid_argument);
}

}  // namespace
