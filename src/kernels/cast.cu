#include "kernels/cast.h"

#include <algorithm>

#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 4;

// The grid is [pieces of the largest part, parts]; blocks beyond the end of a part have nothing to
// do.
__global__ void cast_kernel(const CastPart* parts) {
  const CastPart part = parts[blockIdx.y];
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kPack;
  for (std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
       at < part.count; at += stride) {
    if (at + kPack <= part.count) {
      float values[kPack];
      load_floats(part.from + at, values);
      store(part.to + at, pack(values));
      continue;
    }
    for (std::int64_t i = at; i < part.count; ++i) part.to[i] = to_bf16(part.from[i]);
  }
}

}  // namespace

void cast_to_bf16(const CastPart* parts, int count, std::int64_t largest, Stream stream) {
  require(count > 0 && largest > 0, "cast_to_bf16", "at least one element");
  const std::int64_t piece = std::int64_t{kThreads} * kPack * kPacksPerThread;
  const dim3 grid(
      static_cast<unsigned>(std::min<std::int64_t>((largest + piece - 1) / piece, 4096)),
      static_cast<unsigned>(count));
  cast_kernel<<<grid, kThreads, 0, stream>>>(parts);
  check_launch("cast_to_bf16");
}

}  // namespace lockstep::kernels
