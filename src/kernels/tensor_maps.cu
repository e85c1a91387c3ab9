#include "kernels/tensor_maps.h"

#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/device_code.h"

namespace lockstep::kernels {
namespace {

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

}  // namespace

bool has_tiles() {
  constexpr int kHopper = 9;
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == kHopper && has_hopper_code() && encoder() != nullptr;
}

CUtensorMap tile_map(const Bf16* matrix, std::int64_t rows, std::int64_t columns, int tile_rows) {
  constexpr cuuint32_t kTileColumns = 64;
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(columns) * sizeof(Bf16)};
  const cuuint32_t tile[] = {kTileColumns, static_cast<cuuint32_t>(tile_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(matrix), sizes,
                row_bytes, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("the GPU's driver refused to describe a matrix to its copy engine");
  }
  return map;
}

}  // namespace lockstep::kernels
