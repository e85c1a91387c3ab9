#include "kernels/tile_products.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/tensor_maps.h"
#include "kernels/tile_epilogues.cuh"

namespace lockstep::kernels {
namespace {

using namespace tiles;
template <class Epilogue>
void start(const char* name, const Matrices& matrices, const Epilogue& epilogue, const Shape& shape,
           Stream stream) {
  const auto kernel = product_kernel<Epilogue>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(sizeof(Shared)));
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = kCluster, .y = 1, .z = 1};
  cudaLaunchConfig_t launch = {};
  launch.gridDim = std::min(multiprocessors() / kCluster, shape.tiles()) * kCluster;
  launch.blockDim = kThreads;
  launch.dynamicSmemBytes = sizeof(Shared);
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  cudaLaunchKernelEx(&launch, kernel, matrices, epilogue, shape);
  check_launch(name);
}

Shape checked_shape(const char* name, std::int64_t m, std::int64_t n, std::int64_t k) {
  require(has_tile_products(m, n, k), name, "a Hopper device, and multiples of 64");
  // Where b does not stay in the cache, it is loaded once for every panel.
  constexpr std::int64_t kMostCachedBytes = std::int64_t{16} << 20;
  return {.m = static_cast<int>(m),
          .n = static_cast<int>(n),
          .k = static_cast<int>(k),
          .panel = n * k * std::int64_t{sizeof(Bf16)} > kMostCachedBytes ? 16 : 1};
}

int blocks_of(std::int64_t m) {
  return Shape{static_cast<int>(m), 0, 0}.rows_of_tiles() * kCluster;
}

}  // namespace

bool has_tile_products(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  return m > 0 && n > 0 && k > 0 && std::max({m, n, k}) < kMost && n % kSide == 0 &&
         k % kDeep == 0 && has_tiles();
}

bool tile_products_pay(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (!has_tile_products(m, n, k)) return false;
  const Shape shape{static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)};
  const std::int64_t beyond = std::int64_t{shape.columns_of_tiles()} * kWide - n;
  return shape.tiles() >= 2 * (multiprocessors() / kCluster) && beyond * 16 <= n;
}

void gelu_product(const GeluProduct& product, Stream stream) {
  const auto [m, n, k, a, weight, bias, slope, out] = product;
  const Shape shape = checked_shape("gelu_product", m, n, k);
  const Matrices matrices{.a = tile_map(a, m, k, kHigh),
                          .b = tile_map(weight, k, n, kDeep / kCluster),
                          .slope = tile_map(slope, m, n, kSide),
                          .out = tile_map(out, m, n, kSide)};
  start("gelu_product", matrices, WithGelu{bias}, shape, stream);
}

std::int64_t gelu_gradient_scratch(std::int64_t m, std::int64_t n) {
  return blocks_of(m) * n;
}

UnfinishedSums gelu_gradient_product(const GeluGradientProduct& product, Stream stream) {
  const auto [m, n, k, gradient, weight, slope, out, sums, partial] = product;
  const Shape shape = checked_shape("gelu_gradient_product", m, n, k);
  const Matrices matrices{.a = tile_map(gradient, m, k, kHigh),
                          .b = tile_map(weight, n, k, kWide / kCluster),
                          .slope = tile_map(slope, m, n, kSide),
                          .out = tile_map(out, m, n, kSide)};
  start("gelu_gradient_product", matrices, ThroughSlope{partial}, shape, stream);
  return {.partial = partial, .out = {sums}, .blocks = blocks_of(m), .columns = shape.n};
}

int exponential_product_parts(std::int64_t n) {
  return Shape{0, static_cast<int>(n), 0}.columns_of_tiles();
}

void exponential_product(const ExponentialProduct& product, Stream stream) {
  const auto [m, n, k, used, a, weight, shifts, out, partial] = product;
  const Shape shape = checked_shape("exponential_product", m, n, k);
  const Matrices matrices{.a = tile_map(a, m, k, kHigh),
                          .b = tile_map(weight, n, k, kWide / kCluster),
                          .slope = {},
                          .out = tile_map(out, m, n, kSide)};
  const AsExponentials epilogue{shifts, partial, static_cast<int>(used)};
  start("exponential_product", matrices, epilogue, shape, stream);
}

}  // namespace lockstep::kernels
