#include "kernels/cast.h"

#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 4;
constexpr std::int64_t kPiece = std::int64_t{kThreads} * kPack * kPacksPerThread;

// A block has a piece of one part, and looks for the part among all of them.
__global__ void cast_kernel(const CastPart* parts, int count) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (parts[middle].first_piece <= blockIdx.x ? low : high) = middle;
  }
  const CastPart part = parts[low];
  const std::int64_t start =
      (blockIdx.x - part.first_piece) * kPiece + static_cast<std::int64_t>(threadIdx.x) * kPack;
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    const std::int64_t at = start + static_cast<std::int64_t>(i) * kThreads * kPack;
    if (at + kPack <= part.count) {
      float values[kPack];
      load_floats(part.from + at, values);
      store(part.to + at, pack(values));
    } else {
      for (std::int64_t j = at; j < part.count; ++j) part.to[j] = to_bf16(part.from[j]);
    }
  }
}

}  // namespace

std::int64_t number_pieces(CastPart* parts, int count) {
  std::int64_t pieces = 0;
  for (int i = 0; i < count; ++i) {
    parts[i].first_piece = pieces;
    pieces += (parts[i].count + kPiece - 1) / kPiece;
  }
  return pieces;
}

void cast_to_bf16(const CastPart* parts, int count, std::int64_t pieces, Stream stream) {
  require(count > 0 && pieces > 0, "cast_to_bf16", "at least one element");
  cast_kernel<<<static_cast<unsigned>(pieces), kThreads, 0, stream>>>(parts, count);
  check_launch("cast_to_bf16");
}

}  // namespace lockstep::kernels
