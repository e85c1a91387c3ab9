#include "kernels/tile_products.h"

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Size {
  std::int64_t m, n, k;
};

class TileProductsOnGpu : public ::testing::TestWithParam<Size> {
 protected:
  void SetUp() override {
    const auto [m, n, k] = GetParam();
    if (!kernels::has_tile_products(m, n, k)) GTEST_SKIP() << "not a Hopper GPU";
  }
};

// Terms that cancel out leave float32's errors of their own size.
constexpr double kTileSumSize = 0.05;

at::Tensor through_gelu(const at::Tensor& x) {
  return at::gelu_backward(torch::ones_like(x), x, "tanh");
}

TEST_P(TileProductsOnGpu, BendsAndTellsTheSlope) {
  const auto [m, n, k] = GetParam();
  const at::Tensor a = random_bf16({m, k}), weight = random_bf16({k, n}, 0.1);
  const at::Tensor bias = random_bf16({n});
  // One row more, which nobody may write to.
  const at::Tensor slope = torch::full({m + 1, n}, 7, a.options());
  const at::Tensor out = torch::full({m + 1, n}, 7, a.options());
  kernels::gelu_product({.m = m,
                         .n = n,
                         .k = k,
                         .a = bf16(a),
                         .weight = bf16(weight),
                         .bias = bf16(bias),
                         .slope = bf16(slope),
                         .out = bf16(out)},
                        current_stream());
  const at::Tensor before = a.to(at::kDouble).mm(weight.to(at::kDouble)) + bias.to(at::kDouble);
  // Small values are as exact as large ones: what is left over is float32's error of the sums.
  EXPECT_LE(roundings(out.narrow(0, 0, m), at::gelu(before, "tanh"), 1e-3), 1.1);
  EXPECT_LE(roundings(slope.narrow(0, 0, m), through_gelu(before), 1e-3), 1.1);
  EXPECT_TRUE(out[m].eq(7).all().item<bool>());
  EXPECT_TRUE(slope[m].eq(7).all().item<bool>());
}

TEST_P(TileProductsOnGpu, GradientGoesThroughTheSlopeAndIsAddedUp) {
  const auto [m, n, k] = GetParam();
  const at::Tensor gradient = random_bf16({m, k}), weight = random_bf16({n, k}, 0.1);
  const at::Tensor slope = random_bf16({m, n});
  const at::Tensor out = torch::full({m + 1, n}, 7, slope.options());
  const auto run = [&] {
    const at::Tensor sums = empty_f32({n});
    const at::Tensor partial = empty_f32({kernels::gelu_gradient_scratch(m, n)});
    kernels::finish_sums(kernels::gelu_gradient_product({.m = m,
                                                         .n = n,
                                                         .k = k,
                                                         .gradient = bf16(gradient),
                                                         .weight = bf16(weight),
                                                         .slope = bf16(slope),
                                                         .out = bf16(out),
                                                         .sums = f32(sums),
                                                         .partial = f32(partial)},
                                                        current_stream()),
                         current_stream());
    return sums;
  };
  const at::Tensor sums = run(), rows = out.narrow(0, 0, m);
  const at::Tensor exact =
      gradient.to(at::kDouble).mm(weight.to(at::kDouble).t()) * slope.to(at::kDouble);
  EXPECT_LE(roundings(rows, exact, kTileSumSize), 1.1);
  EXPECT_TRUE(out[m].eq(7).all().item<bool>());
  const at::Tensor exact_sums = rows.to(at::kDouble).sum(0);
  EXPECT_LE((sums - exact_sums).abs().max().item<double>(),
            1e-6 * rows.to(at::kDouble).abs().sum(0).max().item<double>());
  const at::Tensor first = rows.clone();
  EXPECT_TRUE(run().equal(sums));  // the same bits every time
  EXPECT_TRUE(rows.equal(first));
}

TEST_P(TileProductsOnGpu, PowersComeWithTheirSums) {
  const auto [m, n, k] = GetParam();
  const std::int64_t used = n - 7, parts = kernels::exponential_product_parts(n);
  const at::Tensor a = random_bf16({m, k}), weight = random_bf16({n, k}, 2.0 / std::sqrt(k));
  const at::Tensor shifts = torch::randn({m}, kDevice) * 5;
  shifts[0] = INFINITY;
  const at::Tensor out = torch::full({m + 1, n}, 7, a.options());
  const at::Tensor partial = torch::full({parts + 1, m}, NAN, shifts.options());
  const auto run = [&] {
    kernels::exponential_product({.m = m,
                                  .n = n,
                                  .k = k,
                                  .used = used,
                                  .a = bf16(a),
                                  .weight = bf16(weight),
                                  .shifts = f32(shifts),
                                  .out = bf16(out),
                                  .partial = f32(partial)},
                                 current_stream());
  };
  run();
  const at::Tensor exact = a.to(at::kDouble).mm(weight.to(at::kDouble).t()).exp() /
                           shifts.to(at::kDouble).exp2().unsqueeze(1);
  exact.narrow(1, used, n - used).zero_();
  const at::Tensor rows = out.narrow(0, 0, m), sums = partial.narrow(0, 0, parts);
  EXPECT_LE(roundings(rows, exact, 1e-10), 1.01);
  EXPECT_TRUE(out[m].eq(7).all().item<bool>());
  const at::Tensor exact_sums = exact.sum(1);
  EXPECT_LE(((sums.sum(0) - exact_sums).abs() / (exact_sums + 1e-10)).max().item<double>(), 3e-5);
  EXPECT_TRUE(partial[parts].isnan().all().item<bool>());
  const at::Tensor first = rows.clone(), first_sums = sums.clone();
  run();  // the same bits every time
  EXPECT_TRUE(rows.equal(first));
  EXPECT_TRUE(sums.equal(first_sums));
}

// One tile; parts of tiles; several for each group of warps; GPT-2's own; a panel and a part of
// one.
INSTANTIATE_TEST_SUITE_P(Sizes, TileProductsOnGpu,
                         ::testing::Values(Size{256, 192, 64}, Size{1, 64, 64}, Size{130, 64, 128},
                                           Size{1000, 320, 192}, Size{5000, 3072, 768},
                                           Size{4096, 4096, 1024}, Size{4500, 8256, 1024}),
                         [](const auto& info) {
                           return std::to_string(info.param.m) + "x" +
                                  std::to_string(info.param.n) + "x" + std::to_string(info.param.k);
                         });

TEST(TileProducts, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(kernels::has_tile_products(256, 100, 64));
  EXPECT_FALSE(kernels::has_tile_products(256, 128, 100));
  EXPECT_FALSE(kernels::has_tile_products(0, 128, 64));
  EXPECT_FALSE(kernels::tile_products_pay(256, 3072, 768));    // few tiles
  EXPECT_FALSE(kernels::tile_products_pay(65536, 1024, 768));  // the last ones half beyond
  EXPECT_THROW(kernels::gelu_product({.m = 256, .n = 100, .k = 64}, current_stream()),
               std::invalid_argument);
}

}  // namespace
