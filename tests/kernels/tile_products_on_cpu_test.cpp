// The products' own kernels, compiled for the CPU (on_cpu/launch.h), so that they are tested where
// there is no GPU, and under orders of events that a GPU shows once in a blue moon.

#include "kernels/tile_epilogues.cuh"

#include <gtest/gtest.h>

#include <string>

#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/numbers.h"

namespace {

using namespace lockstep::kernels;
using namespace lockstep::kernels::tiles;
using on_cpu::Lateness;
using on_cpu::map_of;
using on_cpu::roundings;
using on_cpu::Schedule;
using on_cpu::Values;

struct Size {
  int m, n, k;
  int clusters;
  int panel = 1;
};

std::string name_of(const Size& size) {
  return std::to_string(size.m) + "x" + std::to_string(size.n) + "x" + std::to_string(size.k) +
         "By" + std::to_string(size.clusters) + (size.panel > 1 ? "InPanels" : "");
}

constexpr Bf16 kUntouched = 0x40e0;  // 7
constexpr Schedule kSchedules[] = {{1, Lateness::early},  {2, Lateness::late},
                                   {3, Lateness::late},   {4, Lateness::random},
                                   {5, Lateness::random}, {6, Lateness::random}};

double gelu_exactly(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double slope_exactly(double x) {
  const double root = std::sqrt(2 / M_PI);
  const double bent = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * root * (1 + 3 * 0.044715 * x * x);
}

template <class Epilogue>
void run(const Size& size, const Schedule& schedule, const Matrices& matrices,
         const Epilogue& epilogue) {
  const Shape shape{size.m, size.n, size.k, size.panel};
  on_cpu::launch({.blocks = size.clusters * kCluster,
                  .cluster = kCluster,
                  .threads = kThreads,
                  .shared_bytes = sizeof(Shared)},
                 schedule, [&] { product_kernel(matrices, epilogue, shape); });
}

class TileProductsOnCpu : public ::testing::TestWithParam<Size> {};

TEST_P(TileProductsOnCpu, BendsAndTellsTheSlope) {
  const auto [m, n, k, clusters, panel] = GetParam();
  Values<Bf16> a = on_cpu::random_bf16(m * k, 1), weight = on_cpu::random_bf16(k * n, 2, 0.1);
  Values<Bf16> bias = on_cpu::random_bf16(n, 3);
  std::vector<Bf16> first_out, first_slope;
  for (const Schedule& schedule : kSchedules) {
    // One row more, which nobody may write to.
    Values<Bf16> slope((m + 1) * n, kUntouched), out((m + 1) * n, kUntouched);
    run(GetParam(), schedule,
        {.a = map_of(a.data(), m, k, k, kHigh),
         .b = map_of(weight.data(), k, n, n, kDeep / kCluster),
         .slope = map_of(slope.data(), m, n, n, kSide),
         .out = map_of(out.data(), m, n, n, kSide)},
        WithGelu{bias.data()});
    if (!first_out.empty()) {
      EXPECT_EQ(out.copy(), first_out) << "with seed " << schedule.seed;
      EXPECT_EQ(slope.copy(), first_slope) << "with seed " << schedule.seed;
      continue;
    }
    first_out = out.copy(), first_slope = slope.copy();
    double worst = 0;
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < n; ++column) {
        double x = to_float(bias[column]);
        for (int i = 0; i < k; ++i) {
          x += double{to_float(a[row * k + i])} * to_float(weight[i * n + column]);
        }
        const int at = row * n + column;
        worst = std::max({worst, roundings(out[at], gelu_exactly(x), 1e-3),
                          roundings(slope[at], slope_exactly(x), 1e-3)});
      }
    }
    EXPECT_LE(worst, 1.1);
    for (int i = m * n; i < (m + 1) * n; ++i) {
      EXPECT_EQ(out[i], kUntouched);
      EXPECT_EQ(slope[i], kUntouched);
    }
  }
}

TEST_P(TileProductsOnCpu, GradientGoesThroughTheSlopeAndIsAddedUp) {
  const auto [m, n, k, clusters, panel] = GetParam();
  Values<Bf16> gradient = on_cpu::random_bf16(m * k, 1);
  Values<Bf16> weight = on_cpu::random_bf16(n * k, 2, 0.1), slope = on_cpu::random_bf16(m * n, 3);
  const int rows_of_sums = Shape{m, n, k}.rows_of_tiles() * kCluster;
  std::vector<Bf16> first_out;
  std::vector<float> first_sums;
  for (const Schedule& schedule : kSchedules) {
    Values<Bf16> out((m + 1) * n, kUntouched);
    Values<float> partial(rows_of_sums * n);
    run(GetParam(), schedule,
        {.a = map_of(gradient.data(), m, k, k, kHigh),
         .b = map_of(weight.data(), n, k, k, kWide / kCluster),
         .slope = map_of(slope.data(), m, n, n, kSide),
         .out = map_of(out.data(), m, n, n, kSide)},
        ThroughSlope{partial.data()});
    if (!first_out.empty()) {
      EXPECT_EQ(out.copy(), first_out) << "with seed " << schedule.seed;
      EXPECT_EQ(partial.copy(), first_sums) << "with seed " << schedule.seed;
      continue;
    }
    first_out = out.copy(), first_sums = partial.copy();
    // Terms that cancel out leave float32's errors of their own size.
    constexpr double kSumSize = 0.05;
    double worst = 0, worst_sum = 0;
    for (int column = 0; column < n; ++column) {
      double exact_sum = 0, sizes = 0, sum = 0;
      for (int row = 0; row < m; ++row) {
        double x = 0;
        for (int i = 0; i < k; ++i) {
          x += double{to_float(gradient[row * k + i])} * to_float(weight[column * k + i]);
        }
        const Bf16 result = out[row * n + column];
        worst = std::max(worst, roundings(result, x * to_float(slope[row * n + column]), kSumSize));
        exact_sum += to_float(result), sizes += std::fabs(to_float(result));
      }
      for (int i = 0; i < rows_of_sums; ++i) sum += partial[i * n + column];
      worst_sum = std::max(worst_sum, std::fabs(sum - exact_sum) / sizes);
    }
    EXPECT_LE(worst, 1.1);
    EXPECT_LE(worst_sum, 1e-6);
    for (int i = m * n; i < (m + 1) * n; ++i) EXPECT_EQ(out[i], kUntouched);
  }
}

TEST_P(TileProductsOnCpu, PowersComeWithTheirSums) {
  const auto [m, n, k, clusters, panel] = GetParam();
  const int used = n - 7;
  Values<Bf16> a = on_cpu::random_bf16(m * k, 1), weight = on_cpu::random_bf16(n * k, 2, 0.3);
  Values<float> shifts(m);
  for (int i = 0; i < m; ++i) shifts[i] = i % 5 == 4 ? INFINITY : static_cast<float>(i % 7);
  const int parts = Shape{m, n, k}.columns_of_tiles();
  std::vector<Bf16> first_out;
  std::vector<float> first_sums;
  for (const Schedule& schedule : kSchedules) {
    Values<Bf16> out((m + 1) * n, kUntouched);
    Values<float> partial(parts * m + 1, NAN);
    run(GetParam(), schedule,
        {.a = map_of(a.data(), m, k, k, kHigh),
         .b = map_of(weight.data(), n, k, k, kWide / kCluster),
         .slope = {},
         .out = map_of(out.data(), m, n, n, kSide)},
        AsExponentials{shifts.data(), partial.data(), used});
    EXPECT_TRUE(std::isnan(partial[parts * m]));
    partial[parts * m] = 0;
    if (!first_out.empty()) {
      EXPECT_EQ(out.copy(), first_out) << "with seed " << schedule.seed;
      EXPECT_EQ(partial.copy(), first_sums) << "with seed " << schedule.seed;
      continue;
    }
    first_out = out.copy(), first_sums = partial.copy();
    double worst = 0, worst_sum = 0;
    for (int row = 0; row < m; ++row) {
      double exact_sum = 0, sum = 0;
      for (int column = 0; column < n; ++column) {
        double x = 0;
        for (int i = 0; i < k; ++i) {
          x += double{to_float(a[row * k + i])} * to_float(weight[column * k + i]);
        }
        const double power = column < used ? std::exp(x) / std::exp2(shifts[row]) : 0;
        worst = std::max(worst, roundings(out[row * n + column], power, 1e-10));
        exact_sum += power;
      }
      for (int i = 0; i < parts; ++i) sum += partial[i * m + row];
      worst_sum = std::max(worst_sum, std::fabs(sum - exact_sum) / (exact_sum + 1e-10));
    }
    EXPECT_LE(worst, 1.01);
    EXPECT_LE(worst_sum, 1e-5);
    for (int i = m * n; i < (m + 1) * n; ++i) EXPECT_EQ(out[i], kUntouched);
  }
}

// One tile; parts of tiles; several for each group of warps, of one cluster and of two; two panels.
INSTANTIATE_TEST_SUITE_P(Sizes, TileProductsOnCpu,
                         ::testing::Values(Size{256, 192, 64, 1}, Size{1, 64, 64, 1},
                                           Size{130, 64, 128, 1}, Size{300, 320, 128, 1},
                                           Size{300, 320, 128, 2}, Size{1300, 256, 64, 2, 4}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
