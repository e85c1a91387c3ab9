#pragma once

// Products whose epilogue has much to do. Where all of a multiprocessor's warps finish their tile
// at once, nothing multiplies meanwhile. Here two groups of warps have a tile each and take turns:
// one multiplies while the other finishes its tile. A third one loads.
//
// Two blocks of a cluster have tiles one below the other, so that each loads half of the tile of b
// for both.

#include "kernels/fragments.cuh"
#include "kernels/wgmma.cuh"

namespace lockstep::kernels::tiles {

inline constexpr int kCluster = 2;
inline constexpr int kGroups = 2;  // that multiply
inline constexpr int kThreads = (kGroups + 1) * kGroupThreads;
inline constexpr int kHeights = 2;  // squares of a tile
inline constexpr int kWidths = 3;
inline constexpr int kSquares = kHeights * kWidths;
inline constexpr int kHigh = kHeights * kSide, kWide = kWidths * kSide;
inline constexpr int kDeep = kSide;  // terms of a sum that are loaded at a time
inline constexpr int kStages = 4;
inline constexpr int kSlots = 4;  // for squares on their way from or to memory, of each group

// Registers of a thread that loads, and of one that multiplies: 192 of them are sums.
inline constexpr int kFewRegisters = 24, kManyRegisters = 240;

// Named barriers.
inline constexpr int kTurn = 1;     // + group: to multiply
inline constexpr int kOfGroup = 3;  // + group

struct alignas(1024) Shared {
  unsigned char a[kStages][kHigh * kTileRow];
  unsigned char b[kStages][kWide * kTileRow];
  unsigned char slots[kGroups][kSlots][kSquare];
  union {  // for epilogues
    float bias[kGroups][kWide];
    float shifts[kGroups][kHigh];
    float sums[kGroups][kWarpsOfGroup][kSide];
  };
  Barrier full[kStages], empty[kStages];
  Barrier loaded[kGroups][kSlots];
};

/// How the copy engine sees the matrices: in squares, a and b in tiles of kDeep columns (or, where
/// b is transposed, rows).
struct Matrices {
  CUtensorMap a, b, slope, out;
};

struct Shape {
  int m, n, k;
  int panel = 1;  // rows of tiles that are multiplied side by side

  __host__ __device__ int columns_of_tiles() const { return (n + kWide - 1) / kWide; }
  /// Of both blocks.
  __host__ __device__ int rows_of_tiles() const {
    return (m + kCluster * kHigh - 1) / (kCluster * kHigh);
  }
  __host__ __device__ int tiles() const { return columns_of_tiles() * rows_of_tiles(); }
};

struct Place {
  int row, column;
};
/// Where a cluster's tile is: panel after panel, and in each column after column, so that those
/// multiplied at the same time have rows or columns in common, which then stay in the cache.
__device__ inline Place place_of(int tile, const Shape& shape, unsigned rank) {
  const int wide = shape.columns_of_tiles();
  const int first = tile / (shape.panel * wide) * shape.panel;
  const int high = min(shape.panel, shape.rows_of_tiles() - first);
  const int place = tile - first * wide;
  return {.row = ((first + place % high) * kCluster + static_cast<int>(rank)) * kHigh,
          .column = place / high * kWide};
}
__device__ inline Place place_in(const Place& tile, int square) {
  return {.row = tile.row + square % kHeights * kSide,
          .column = tile.column + square / kHeights * kSide};
}

/// One thread's work: tile after tile into the stages, as they become empty.
template <bool kTransposedB>
__device__ void load_tiles(Shared& shared, const Matrices& matrices, const Shape& shape) {
  const int rank = static_cast<int>(rank_in_cluster());
  constexpr unsigned short kBoth = 3;
  int stage = 0;
  unsigned parity = 1;  // a fresh barrier's last phase counts as ended
  for (int tile = blockIdx.x / kCluster; tile < shape.tiles(); tile += gridDim.x / kCluster) {
    const Place place = place_of(tile, shape, rank);
    for (int term = 0; term < shape.k; term += kDeep) {
      shared.empty[stage].wait(parity);
      Barrier& full = shared.full[stage];
      full.arrive_and_expect((kHigh + kWide) * kTileRow);
      load_tile(shared.a[stage], matrices.a, term, place.row, full);
      unsigned char* b = shared.b[stage];
      if constexpr (kTransposedB) {
        constexpr int kHalf = kDeep / kCluster;
#pragma unroll
        for (int i = 0; i < kWidths; ++i) {
          load_tile_to(kBoth, b + i * kSquare + rank * kHalf * kTileRow, matrices.b,
                       place.column + i * kSide, term + rank * kHalf, full);
        }
      } else {
        constexpr int kHalf = kWide / kCluster;
        load_tile_to(kBoth, b + rank * kHalf * kTileRow, matrices.b, term,
                     place.column + rank * kHalf, full);
      }
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

/// A thread's part of a tile.
using Sums = float[kHeights][kWide / 2];

/// Waits for the group's turn, multiplies a whole tile, and lets the other group go on before the
/// last products have ended. `first_block` counts what was loaded for all tiles before.
template <bool kTransposedB>
__device__ void multiply_tile(Shared& shared, Sums& sums, const Shape& shape, int group,
                              unsigned first_block, bool is_last) {
  const int lane = threadIdx.x % kWarp;
  const auto release = [&](unsigned block) {
    if (lane < kCluster) shared.empty[block % kStages].arrive_at(lane);
  };
  const unsigned blocks = shape.k / kDeep;
  sync_threads(kTurn + group, kGroups * kGroupThreads);
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned block = first_block + i, stage = block % kStages;
    shared.full[stage].wait(block / kStages % 2);
    const std::uint64_t a = tile_descriptor(shared_address(shared.a[stage]), 0);
    const std::uint64_t b = tile_descriptor(shared_address(shared.b[stage]), kSquare);
    begin_products();
#pragma unroll
    for (int step = 0; step < kDeep / kStep; ++step) {
      const std::uint64_t b_step =
          moved(b, step * kStep * (kTransposedB ? kTileRow : static_cast<int>(sizeof(Bf16))));
#pragma unroll
      for (int high = 0; high < kHeights; ++high) {
        const int from = high * kSquare + step * kStep * static_cast<int>(sizeof(Bf16));
        multiply<false, kTransposedB>(sums[high], moved(a, from), b_step, i > 0 || step > 0);
      }
    }
    end_product_group();
    if (i > 0) {
      wait_for_products<1>();
      release(block - 1);
    }
  }
  if (!is_last) arrive_threads(kTurn + 1 - group, kGroups * kGroupThreads);
  wait_for_products<0>();
  release(first_block + blocks - 1);
}

// A finished tile leaves in squares, one after the other. A warp's first thread starts the copies
// of every fourth one.
__device__ inline bool copies(int square) {
  return thread_of_group() == square % kWarpsOfGroup * kWarp;
}

/// An epilogue has `kTransposedB`, and a group calls its begin() before it multiplies a tile and
/// finish() afterwards.
template <class Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ Matrices matrices, Epilogue epilogue, Shape shape) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  Shared& shared = shared_memory<Shared>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kCluster * kWarpsOfGroup);  // one group's, of both blocks
    }
    for (auto& group : shared.loaded) {
      for (Barrier& loaded : group) loaded.init(1);
    }
    publish_barriers();
  }
  sync_cluster();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (group < 0) {
    give_registers_back<kFewRegisters>();
    if (threadIdx.x == 0) load_tiles<Epilogue::kTransposedB>(shared, matrices, shape);
  } else {
    take_registers<kManyRegisters>();
    const unsigned rank = rank_in_cluster();
    const int stride = static_cast<int>(gridDim.x) / kCluster;
    const unsigned blocks = shape.k / kDeep;
    if (group == 1) arrive_threads(kTurn, kGroups * kGroupThreads);  // the first turn
    Sums sums;
    for (int i = group, tile; (tile = blockIdx.x / kCluster + i * stride) < shape.tiles();
         i += kGroups) {
      const Place place = place_of(tile, shape, rank);
      epilogue.begin(shared, matrices, shape, place, group);
      multiply_tile<Epilogue::kTransposedB>(shared, sums, shape, group, i * blocks,
                                            tile + stride >= shape.tiles());
      epilogue.finish(shared, matrices, shape, place, group, sums);
    }
    wait_for_reads<0>();
  }
  sync_cluster();  // nobody leaves while the other block may still write to it
#endif
}

}  // namespace lockstep::kernels::tiles
