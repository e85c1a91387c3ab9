#pragma once

// What the groups of attention's gradients (attention_backward.cuh) have in common: shared memory,
// the order of their work, and its loading.

#include "kernels/attention_tiles.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kGroups = 2;  // that multiply
inline constexpr int kBackwardThreads = (kGroups + 1) * kGroupThreads;

inline constexpr int kStages = 2;  // pairs whose queries and gradients are loaded
inline constexpr int kTurns = 2;   // tiles of keys and values
inline constexpr int kInners = 2;  // pairs whose `inner` is kept

// Named barriers.
inline constexpr int kInnerOfOther = 1;  // + group: the other group's `inner` is in shared memory;
                                         // + 2 after every second pair, because the other group
                                         // may already be at the next
inline constexpr int kOfGroup = 5;       // + group
inline constexpr int kRead = 7;  // + stage: all threads have read what is there, row values, too

/// Of kRead: those that multiply, and the warp that loads.
inline constexpr int kReadThreads = kGroups * kGroupThreads + kWarp;

struct alignas(1024) BackwardShared {
  unsigned char keys[kTurns][kTile], values[kTurns][kTile];
  unsigned char queries[kStages][kTile], gradients[kStages][kTile];
  unsigned char inner[kInners][kSquares][kTile];  // [128 keys, 64 queries]
  unsigned char slots[kGroups][2][kSquare];       // for results on their way to memory
  float rows[kStages][2][kTokens];  // -log_sum_exp in powers of two, and dot, as RowValues
  Barrier full[kStages];
  Barrier turn_full[kTurns], turn_empty[kTurns];

  __device__ void init_barriers() {
    constexpr int kArrivals = kGroups * kWarpsOfGroup;  // that make room: one of each warp
    init(full, 1);
    init(turn_full, 1), init(turn_empty, kArrivals);
    publish_barriers();
  }

 private:
  template <int kCount>
  __device__ static void init(Barrier (&barriers)[kCount], int arrivals) {
    for (Barrier& barrier : barriers) barrier.init(arrivals);
  }
};
static_assert(sizeof(BackwardShared) <= kMostShared);

struct BackwardMatrices {
  CUtensorMap qkv, gradient, qkv_gradient;
};

/// What a thread needs of 16 queries' values, by the place of a product among its eight.
struct RowValues {
  float4 four;
  __device__ float of(int i) const {
    return i < 4 ? (i % 2 == 0 ? four.x : four.y) : (i % 2 == 0 ? four.z : four.w);
  }
};
__device__ inline RowValues row_values(const float* rows, int sixteen) {
  return {*reinterpret_cast<const float4*>(rows + sixteen * 16 + threadIdx.x % 4 * 4)};
}
/// Where a query's value is for that.
__device__ inline int row_value_place(int query) {
  return query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2;
}

/// The pairs of a block, each of a tile of keys and one of queries, in their order. A head's pairs
/// may be divided among `parts` blocks, 1 or 2, by the tiles of keys: 0, 3, 4, 7 and so on for one,
/// the others for the other, as many pairs for each. Queries come in rising order for one tile of
/// keys and in falling order for the next, so that those that were used last, and may still be in
/// the cache, are used first.
struct Pairs {
  int tiles, parts, items;  // of keys, of a head, of all
  int item, key, step = 0;
  unsigned turn = 0;   // tiles of keys that came before
  unsigned count = 0;  // pairs that did

  __device__ Pairs(const Shape& shape, int parts)
      : tiles(shape.tiles()),
        parts(parts),
        items(shape.all_heads() * parts),
        item(blockIdx.x),
        key(first_key()) {}

  __device__ bool is_done() const { return item >= items; }
  __device__ int head() const { return parts == 1 ? item : item / 2; }
  __device__ int first_key() const { return parts == 1 ? 0 : item % 2; }
  __device__ int query() const { return turn % 2 == 0 ? key + step : tiles - 1 - step; }
  /// Whether queries are of the same tokens as keys, of which they do not see all.
  __device__ bool is_diagonal() const { return query() == key; }
  __device__ bool is_first_of_turn() const { return step == 0; }
  __device__ bool is_last_of_turn() const { return key + step == tiles - 1; }

  __device__ void advance() {
    ++count;
    if (!is_last_of_turn()) {
      ++step;
      return;
    }
    step = 0;
    ++turn;
    key += parts == 1 ? 1 : key % 2 == 0 ? 3 : 1;
    if (key < tiles) return;
    item += static_cast<int>(gridDim.x);
    key = first_key();
  }

  // Which of several that are used in turn is this pair's, or this tile's of keys, and the parity
  // of its barriers when it is full; of a tile of keys when it is empty, that of the round before.
  __device__ unsigned stage() const { return count % kStages; }
  __device__ unsigned stage_parity() const { return count / kStages % 2; }
  __device__ unsigned place() const { return turn % kTurns; }
  __device__ unsigned place_parity() const { return turn / kTurns % 2; }
};

/// One warp's work, and its first lane's to begin copies. `rows` has a tile's values of
/// BackwardShared::rows after the other.
__device__ inline void load_pairs(BackwardShared& shared, const BackwardMatrices& matrices,
                                  const float* rows, const Shape& shape, Pairs pairs) {
  const auto wait_for_readers = [](unsigned count) {
    __syncwarp();
    sync_threads(kRead + static_cast<int>(count % kStages), kReadThreads);
  };
  for (; !pairs.is_done(); pairs.advance()) {
    if (pairs.count >= kStages) wait_for_readers(pairs.count);
    if (!leads_warp()) continue;
    const int head = pairs.head(), query = pairs.query();
    if (pairs.is_first_of_turn()) {
      const unsigned place = pairs.place();
      shared.turn_empty[place].wait(pairs.place_parity() ^ 1);
      Barrier& full = shared.turn_full[place];
      full.arrive_and_expect(2 * kTile);
      const int row = row_of(shape, head, pairs.key);
      load_tile_as(kEvictFirst, shared.keys[place], matrices.qkv, column_of(shape, head, 1), row,
                   full);
      load_tile_as(kEvictFirst, shared.values[place], matrices.qkv, column_of(shape, head, 2), row,
                   full);
    }
    const unsigned stage = pairs.stage();
    Barrier& full = shared.full[stage];
    full.arrive_and_expect(2 * kTile + static_cast<int>(sizeof(shared.rows[stage])));
    const int row = row_of(shape, head, query);
    // Queries meet no keys that are later than their own.
    const std::uint64_t kept = pairs.is_diagonal() ? kEvictFirst : kEvictNormal;
    const int column = column_of(shape, head);
    load_tile_as(kept, shared.queries[stage], matrices.qkv, column, row, full);
    load_tile_as(kept, shared.gradients[stage], matrices.gradient, column, row, full);
    load_bytes(shared.rows[stage],
               rows + (std::int64_t{head} * shape.tiles() + query) * 2 * kTokens,
               sizeof(shared.rows[stage]), full);
  }
  // The last ones: nobody leaves a barrier unfinished.
  for (unsigned i = pairs.count - min(pairs.count, unsigned{kStages}); i < pairs.count; ++i) {
    wait_for_readers(i);
  }
}

}  // namespace lockstep::kernels::attention
