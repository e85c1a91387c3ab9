#include "kernels/tile_products.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/tile_epilogues.cuh"

namespace lockstep::kernels {
namespace {

using namespace tiles;
using Encode = decltype(&cuTensorMapEncodeTiled);

// A function of the driver, which the runtime finds without linking it.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    constexpr unsigned kSince = 12000;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault,
                                     &result);
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

// A matrix [rows, columns] in tiles of 64 columns.
CUtensorMap map_of(const Bf16* matrix, std::int64_t rows, std::int64_t columns, int tile_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(columns) * sizeof(Bf16)};
  const cuuint32_t tile[] = {kSide, static_cast<cuuint32_t>(tile_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(matrix), sizes,
                row_bytes, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("the GPU's driver refused a matrix of a product");
  }
  return map;
}

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
  return {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)};
}

int blocks_of(std::int64_t m) {
  return Shape{static_cast<int>(m), 0, 0}.rows_of_tiles() * kCluster;
}

}  // namespace

bool has_tile_products(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr int kHopper = 9;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == kHopper && m > 0 && n > 0 && k > 0 && std::max({m, n, k}) < kMost &&
         n % kSide == 0 && k % kDeep == 0 && encoder() != nullptr;
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
  const Matrices matrices{.a = map_of(a, m, k, kHigh),
                          .b = map_of(weight, k, n, kDeep / kCluster),
                          .slope = map_of(slope, m, n, kSide),
                          .out = map_of(out, m, n, kSide)};
  start("gelu_product", matrices, WithGelu{bias}, shape, stream);
}

std::int64_t gelu_gradient_scratch(std::int64_t m, std::int64_t n) {
  return blocks_of(m) * n;
}

UnfinishedSums gelu_gradient_product(const GeluGradientProduct& product, Stream stream) {
  const auto [m, n, k, gradient, weight, slope, out, sums, partial] = product;
  const Shape shape = checked_shape("gelu_gradient_product", m, n, k);
  const Matrices matrices{.a = map_of(gradient, m, k, kHigh),
                          .b = map_of(weight, n, k, kWide / kCluster),
                          .slope = map_of(slope, m, n, kSide),
                          .out = map_of(out, m, n, kSide)};
  start("gelu_gradient_product", matrices, ThroughSlope{partial}, shape, stream);
  return {.partial = partial, .out = {sums}, .blocks = blocks_of(m), .columns = shape.n};
}

}  // namespace lockstep::kernels
