#pragma once

// How tiles lie in shared memory, and how products are told of it.

#include "kernels/device.cuh"

namespace lockstep::kernels {

/// Threads of a group: four warps, which multiply together.
inline constexpr int kGroupThreads = 128;
/// A row of a tile in shared memory, in bytes: within eight rows, 16 bytes at `place` of row `r`
/// lie at `place ^ r`, so that no two threads want the same bank.
inline constexpr int kTileRow = 128;

/// How products find a tile whose rows of 128 bytes are swizzled. `across` is the distance of the
/// next 64 columns where a row runs along the result's columns, and counts for nothing where it
/// runs along the sum.
__device__ inline std::uint64_t tile_descriptor(unsigned address, unsigned across) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = 8 * kTileRow;
  return kSwizzle128 | (kEightRows >> 4) << 32 | std::uint64_t{across >> 4} << 16 |
         (address & 0x3ffff) >> 4;
}
/// The descriptor of what begins `bytes` later.
__device__ inline std::uint64_t moved(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<unsigned>(bytes >> 4);
}

}  // namespace lockstep::kernels
