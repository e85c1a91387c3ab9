#pragma once

// What the products of tile_products.h do with their tiles.

#include "kernels/approximate.cuh"
#include "kernels/gelu.cuh"
#include "kernels/product_tiles.cuh"

namespace lockstep::kernels::tiles {

/// Forward: a bias is added, and GELU and its slope go to memory.
struct WithGelu {
  static constexpr bool kTransposedB = true;
  const Bf16* bias;

  __device__ void begin(Shared& shared, const Matrices&, const Shape& shape, const Place& tile,
                        int group) {
    for (int i = thread_of_group(); i < kWide; i += kGroupThreads) {
      shared.bias[group][i] = tile.column + i < shape.n ? to_float(bias[tile.column + i]) : 0.0f;
    }
  }

  __device__ void finish(Shared& shared, const Matrices& matrices, const Shape&, const Place& tile,
                         int group, Sums& sums) {
#pragma unroll
    for (int square = 0; square < kSquares; ++square) {
      const int wide = square / kHeights;
      unsigned slopes[4][4], values[4][4];
      bend(&shared.bias[group][wide * kSide], &sums[square % kHeights][wide * kSide / 2], slopes,
           values);
      // These two slots are free: the copies of the square before the last were waited for.
      unsigned char* slope = shared.slots[group][square % 2 * 2];
      unsigned char* value = slope + kSquare;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_matrices(matrices_in(slope, i), slopes[i]);
        store_matrices(matrices_in(value, i), values[i]);
      }
      publish_to_copies();
      if (copies((square + kSquares - 1) % kSquares)) wait_for_reads<0>();
      sync_threads(kOfGroup + group, kGroupThreads);
      if (copies(square)) {
        const Place place = place_in(tile, square);
        store_tile(matrices.slope, place.column, place.row, slope);
        store_tile(matrices.out, place.column, place.row, value);
        end_store_group();
      }
    }
  }

 private:
  __device__ static void bend(const float* bias, const float* sums, unsigned (&slopes)[4][4],
                              unsigned (&values)[4][4]) {
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      const float2 added = *reinterpret_cast<const float2*>(bias + eight * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Bent first = gelu(sums[eight * 4 + half * 2] + added.x);
        const Bent second = gelu(sums[eight * 4 + half * 2 + 1] + added.y);
        slopes[eight / 2][eight % 2 * 2 + half] = pair_of(first.slope, second.slope);
        values[eight / 2][eight % 2 * 2 + half] = pair_of(first.value, second.value);
      }
    }
  }
};

/// Backward: GELU's slopes are on their way while the tile is multiplied, and the result takes
/// their place. Its columns are added up on the way.
struct ThroughSlope {
  static constexpr bool kTransposedB = false;
  float* partial;         // [tiles, n]
  unsigned parities = 0;  // a bit for each slot

  // The warp that started the last copy from a slot loads the first square into it.
  __device__ void begin(Shared& shared, const Matrices& matrices, const Shape&, const Place& tile,
                        int group) {
    static_assert(kSlots == kWarpsOfGroup);
    if (threadIdx.x % kWarp != 0) return;
    wait_for_reads<0>();
    load_slope(shared, matrices, tile, group, thread_of_group() / kWarp);
  }

  __device__ void finish(Shared& shared, const Matrices& matrices, const Shape& shape,
                         const Place& tile, int group, Sums& sums) {
    float columns[16];
#pragma unroll
    for (int square = 0; square < kSquares; ++square) {
      const int slot = square % kSlots, wide = square / kHeights, high = square % kHeights;
      shared.loaded[group][slot].wait(parities >> slot & 1);
      parities ^= 1u << slot;
      unsigned char* values = shared.slots[group][slot];
      if (high == 0) {
#pragma unroll
        for (float& column : columns) column = 0.0f;
      }
      multiply_by(values, &sums[high][wide * kSide / 2], columns);
      publish_to_copies();
      if (square > 0 && square - 1 + kSlots < kSquares && copies(square - 1)) {
        wait_for_reads<0>();
        load_slope(shared, matrices, tile, group, square - 1 + kSlots);
      }
      sync_threads(kOfGroup + group, kGroupThreads);
      if (copies(square)) {
        const Place place = place_in(tile, square);
        store_tile(matrices.out, place.column, place.row, values);
        end_store_group();
      }
      // Between two of these barriers, what all warps had put there before the first.
      if (high == 0 && wide > 0) pass_sums_on(shared, shape, tile, group, wide - 1);
      if (high == kHeights - 1) {
        put_column_sums(columns, shared.sums[group][thread_of_group() / kWarp]);
      }
    }
    sync_threads(kOfGroup + group, kGroupThreads);
    pass_sums_on(shared, shape, tile, group, kWidths - 1);
  }

 private:
  __device__ static void load_slope(Shared& shared, const Matrices& matrices, const Place& tile,
                                    int group, int square) {
    Barrier& loaded = shared.loaded[group][square % kSlots];
    loaded.arrive_and_expect(kSquare);
    const Place place = place_in(tile, square);
    load_tile(shared.slots[group][square % kSlots], matrices.slope, place.column, place.row,
              loaded);
  }

  __device__ static void multiply_by(unsigned char* square, const float* sums,
                                     float (&columns)[16]) {
    unsigned pairs[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_matrices(matrices_in(square, i), pairs[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int eight = i * 2 + j / 2;
        const float* sum = sums + eight * 4 + j % 2 * 2;
        const float2 slope = floats_of(pairs[i][j]);
        pairs[i][j] = pair_of(sum[0] * slope.x, sum[1] * slope.y);
        const float2 rounded = floats_of(pairs[i][j]);
        columns[eight * 2] += rounded.x;
        columns[eight * 2 + 1] += rounded.y;
      }
      store_matrices(matrices_in(square, i), pairs[i]);
    }
  }

  // Of one square's columns over all rows of the tile.
  __device__ void pass_sums_on(const Shared& shared, const Shape& shape, const Place& tile,
                               int group, int wide) const {
    const int mine = thread_of_group();
    const int column = tile.column + wide * kSide + mine;
    if (mine >= kSide || column >= shape.n) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarpsOfGroup; ++i) sum += shared.sums[group][i][mine];
    partial[static_cast<std::int64_t>(tile.row / kHigh) * shape.n + column] = sum;
  }
};

/// Powers of e of the sums, each row's divided by one of its own, and what the columns of a tile
/// add up to in a row. Columns that do not count have zeros.
struct AsExponentials {
  static constexpr bool kTransposedB = false;
  static_assert(kHigh == kGroupThreads);
  const float* shifts;  // [m]: a row's powers are divided by 2 to the power of this
  float* partial;       // [columns of tiles, m]
  int used;             // columns that count

  __device__ void begin(Shared& shared, const Matrices&, const Shape& shape, const Place& tile,
                        int group) {
    if (leads_warp()) wait_for_reads<0>();  // of the slots, before others write there
    const int row = thread_of_group();
    shared.shifts[group][row] = tile.row + row < shape.m ? shifts[tile.row + row] : INFINITY;
  }

  __device__ void finish(Shared& shared, const Matrices& matrices, const Shape& shape,
                         const Place& tile, int group, Sums& sums) {
    const int lane = threadIdx.x % kWarp;
    const int row = thread_of_group() / kWarp * 16 + lane / 4;  // and eight below, in each square
    float shift[kHeights][2], added[kHeights][2] = {};
#pragma unroll
    for (int high = 0; high < kHeights; ++high) {
      shift[high][0] = shared.shifts[group][high * kSide + row];
      shift[high][1] = shared.shifts[group][high * kSide + row + 8];
    }
#pragma unroll
    for (int square = 0; square < kSquares; ++square) {
      const int high = square % kHeights, wide = square / kHeights;
      raise(&sums[high][wide * kSide / 2], used - tile.column - wide * kSide, shift[high],
            added[high]);
      unsigned char* slot = shared.slots[group][square % kSlots];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned pairs[4];
        round_sums(sums[high], wide * 4 + i, pairs);
        store_matrices(matrices_in(slot, i), pairs);
      }
      publish_to_copies();
      // The next square's slot, whose copy the same thread started.
      const int next = square + 1;
      if (next >= kSlots && next < kSquares && copies(next)) wait_for_reads<0>();
      sync_threads(kOfGroup + group, kGroupThreads);
      if (copies(square)) {
        const Place place = place_in(tile, square);
        store_tile(matrices.out, place.column, place.row, slot);
        end_store_group();
      }
    }
    pass_sums_on(added, shape, tile, row);
  }

 private:
  // `left`: how many columns from the square's first one on count.
  __device__ static void raise(float* values, int left, const float (&shift)[2],
                               float (&added)[2]) {
#pragma unroll
    for (int i = 0; i < kSide / 2; ++i) {
      values[i] = power_of_two(fmaf(values[i], kLog2E, -shift[i / 2 % 2]));
    }
    if (left < kSide) {
#pragma unroll
      for (int i = 0; i < kSide / 2; ++i) {
        const int column = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (column >= left) values[i] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kSide / 2; ++i) added[i / 2 % 2] += values[i];
  }

  // Four lanes have columns of the same four rows.
  __device__ void pass_sums_on(float (&added)[kHeights][2], const Shape& shape, const Place& tile,
                               int row) const {
    const int quarter = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < kHeights * 2; ++i) {
      float& sum = added[i / 2][i % 2];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const int place = tile.row + i / 2 * kSide + i % 2 * 8 + row;
      if (quarter == i && place < shape.m) {
        partial[static_cast<std::int64_t>(tile.column / kWide) * shape.m + place] = sum;
      }
    }
  }
};

}  // namespace lockstep::kernels::tiles
