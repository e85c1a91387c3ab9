#pragma once

// Attention, forward. A block takes 192 queries of a head, 64 for each group. Keys and values come
// in tiles of 128, from the first on; what was summed up is scaled down whenever a larger exponent
// appears. While one group computes exponentials, the products of the others are.

#include "kernels/attention_tiles.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kForwardGroups = 3;  // that multiply
inline constexpr int kForwardThreads = (kForwardGroups + 1) * kGroupThreads;
// Registers of a thread that loads, and of one that multiplies.
inline constexpr int kLoadRegisters = 24, kMultiplyRegisters = 160;

inline constexpr int kForwardStages = 4;
inline constexpr int kQueryStages = 2;     // of one item's queries
inline constexpr int kForwardBarrier = 1;  // + group, of its threads

struct alignas(1024) ForwardShared {
  unsigned char queries[kForwardGroups][kQueryStages][kSquare];
  unsigned char keys[kForwardStages][kTile], values[kForwardStages][kTile];
  unsigned char slots[kForwardGroups][kSquare];  // for results on their way to memory
  Barrier full[kForwardStages], empty[kForwardStages];
  Barrier queries_full[kForwardGroups][kQueryStages], queries_empty[kForwardGroups][kQueryStages];
};
static_assert(sizeof(ForwardShared) <= kMostShared);

struct ForwardMatrices {
  CUtensorMap queries, keys_and_values, out;  // the first two of the same matrix
};

/// Items of a head, each of three neighbouring squares of queries.
__host__ __device__ inline int items_of_head(const Shape& shape) {
  return (shape.tokens / kSide + kForwardGroups - 1) / kForwardGroups;
}

/// The items of a block. The first of a head has the last queries, which see the most keys. Blocks
/// take whole heads, whose keys then stay in the cache, as long as there is one for each of them.
/// Of what is left they take the long items first, and the block that had the shortest is the next
/// to take one.
struct Items {
  const int squares, in_head, heads;  // of a head, and of all
  const int whole;                    // heads
  int place, item = 0, round = 0;
  bool takes_heads;

  __device__ explicit Items(const Shape& shape)
      : squares(shape.tokens / kSide),
        in_head(items_of_head(shape)),
        heads(shape.all_heads()),
        whole(heads - heads % static_cast<int>(gridDim.x)),
        place(static_cast<int>(blockIdx.x)),
        takes_heads(whole > 0) {
    if (!takes_heads) find_item();
  }

  __device__ bool is_done() const { return !takes_heads && item >= in_head; }
  __device__ int head() const { return takes_heads ? place : whole + place; }
  /// Which of the head's squares; below 0 where there are no more.
  __device__ int square_of(int group) const { return squares - 1 - item * kForwardGroups - group; }
  /// Tiles of keys that the group's queries see.
  __device__ int keys_of(int group) const { return (square_of(group) + kSquares) / kSquares; }
  __device__ int keys() const { return keys_of(0); }

  __device__ void advance() {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    if (!takes_heads) {
      // From the first to the last block and back.
      place += 2 * (round++ % 2 == 0 ? blocks - 1 - block : block) + 1;
    } else {
      if (++item < in_head) return;
      item = 0;
      place += blocks;
      if (place < whole) return;
      takes_heads = false;
      place = block;
    }
    find_item();
  }

  // All heads have an item before any has its next. Without a division, so that the compiler sees
  // that a warp's lanes agree.
  __device__ void find_item() {
    for (; place >= heads - whole && item < in_head; ++item) place -= heads - whole;
  }
};

/// One thread's work.
__device__ inline void load_items(ForwardShared& shared, const ForwardMatrices& matrices,
                                  const Shape& shape, Items items) {
  unsigned stage = 0, parity = 1;       // a fresh barrier's last phase counts as ended
  unsigned taken[kForwardGroups] = {};  // items before
  for (; !items.is_done(); items.advance()) {
    const int head = items.head();
#pragma unroll
    for (int group = 0; group < kForwardGroups; ++group) {
      if (items.square_of(group) < 0) continue;
      const unsigned place = taken[group] % kQueryStages;
      shared.queries_empty[group][place].wait(taken[group]++ / kQueryStages % 2 ^ 1);
      Barrier& full = shared.queries_full[group][place];
      full.arrive_and_expect(kSquare);
      load_tile_as(kEvictFirst, shared.queries[group][place], matrices.queries,
                   column_of(shape, head), square_row_of(shape, head, items.square_of(group)),
                   full);
    }
    for (int key = 0; key < items.keys(); ++key) {
      shared.empty[stage].wait(parity);
      Barrier& full = shared.full[stage];
      full.arrive_and_expect(2 * kTile);
      const int row = row_of(shape, head, key);
      load_tile(shared.keys[stage], matrices.keys_and_values, column_of(shape, head, 1), row, full);
      load_tile(shared.values[stage], matrices.keys_and_values, column_of(shape, head, 2), row,
                full);
      if (++stage == kForwardStages) stage = 0, parity ^= 1;
    }
  }
}

/// What one of the groups that multiply does.
class ForwardGroup {
 public:
  __device__ ForwardGroup(ForwardShared& shared, const ForwardMatrices& matrices,
                          float* log_sum_exp, const Shape& shape, int group)
      : shared_(shared),
        matrices_(matrices),
        log_sum_exp_(log_sum_exp),
        shape_(shape),
        group_(group) {}

  __device__ void run(Items items) {
    for (; !items.is_done(); items.advance()) {
      const int square = items.square_of(group_), keys = items.keys_of(group_);
      if (square >= 0) take_item(items.head(), square, keys);
      for (int key = keys; key < items.keys(); ++key) pass_over();
    }
    if (leads_group()) wait_for_reads<0>();
  }

 private:
  using Products = float[kTokens / 2];  // a thread's, of [64 queries, 128 keys]

  /// What was summed up: rows `lane / 4` and, as [1], eight below.
  struct Sums {
    float values[kSide / 2];      // [64 queries, 64 columns]
    float largest[2], totals[2];  // totals of this lane alone
  };

  __device__ void take_item(int head, int square, int keys) {
    Sums sums;
    begin(sums);
    const unsigned place = taken_ % kQueryStages;
    shared_.queries_full[group_][place].wait(taken_++ / kQueryStages % 2);
    const unsigned char* queries = shared_.queries[group_][place];
    Products products;
    wait_for_keys(count_);
    begin_products();
    multiply_keys(products, queries, count_);
    wait_for_products<0>();
    for (int key = 0; key < keys - 1; ++key) take_keys(sums, products, queries);
    if (leads_warp()) shared_.queries_empty[group_][place].arrive();
    // Of the last tile half of the queries see only the first half.
    mask(products, square % kSquares);
    if (square % kSquares == 0) {
      take_last_keys<1>(sums, products);
    } else {
      take_last_keys<2>(sums, products);
    }
    finish(sums, head, square);
  }

  // A tile that all queries see. Its products are known, and those of the next are begun.
  __device__ void take_keys(Sums& sums, Products& products, const unsigned char* queries) {
    const Minus minus = scale_down<kTokens>(sums, products);
    take_values<0>(sums, products, minus);
    wait_for_keys(count_ + 1);
    take_values<1>(sums, products, minus);
    multiply_keys(products, queries, count_ + 1);
    wait_for_products<1>();
    release_keys();
    wait_for_products<0>();
  }

  // The last tile, of which queries see one half or both.
  template <int kHalves>
  __device__ void take_last_keys(Sums& sums, Products& products) {
    const Minus minus = scale_down<kHalves * kSide>(sums, products);
    take_values<0>(sums, products, minus);
    if constexpr (kHalves > 1) take_values<1>(sums, products, minus);
    wait_for_products<0>();
    release_keys();
  }

  // Keys that only other groups' queries see.
  __device__ void pass_over() {
    wait_for_keys(count_);
    __syncwarp();  // a lane that is late might else see a later phase
    release_keys();
  }

  __device__ void wait_for_keys(unsigned count) const {
    shared_.full[count % kForwardStages].wait(count / kForwardStages % 2);
  }
  __device__ void release_keys() {
    if (leads_warp()) shared_.empty[count_ % kForwardStages].arrive();
    ++count_;
  }

  __device__ static void begin(Sums& sums) {
#pragma unroll
    for (float& value : sums.values) value = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) sums.largest[i] = -INFINITY, sums.totals[i] = 0.0f;
  }

  __device__ void multiply_keys(Products& products, const unsigned char* queries,
                                unsigned count) const {
    const std::uint64_t a = tile_descriptor(shared_address(queries), 0);
    const std::uint64_t b =
        tile_descriptor(shared_address(shared_.keys[count % kForwardStages]), 0);
#pragma unroll
    for (int i = 0; i < kDeeps; ++i) {
      constexpr int kBytes = kStep * static_cast<int>(sizeof(Bf16));
      multiply<false, false>(products, moved(a, i * kBytes), moved(b, i * kBytes), i > 0);
    }
    end_product_group();
  }

  // Queries see no later keys. They are the first or, as 1, the second half of the tile's.
  __device__ static void mask(Products& products, int half) {
    const int lane = threadIdx.x % kWarp;
    const int first = half * kSide + thread_of_group() / kWarp * 16 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int key = i / 4 * 8 + i % 2, query = first + i / 2 % 2 * 8;
      if (key > query) products[i] = -INFINITY;
    }
  }

  // What exponents are reduced by, of both rows.
  struct Minus {
    float of[2];
  };

  // Makes room for the exponents of the first `kSeen` products.
  template <int kSeen>
  __device__ Minus scale_down(Sums& sums, const Products& products) const {
    const float factor = shape_.scale * kLog2E;
    // Every fourth product in a chain of its own: a step of one has to wait for the step before.
    float largests[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) largests[i] = sums.largest[i / 2];
#pragma unroll
    for (int i = 0; i < kSeen / 2; ++i) largests[i % 4] = fmaxf(largests[i % 4], products[i]);
    Minus minus;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = fmaxf(largests[row * 2], largests[row * 2 + 1]);
      // Four lanes share a row.
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      minus.of[row] = -largest * factor;
      const float shrink = power_of_two(fmaf(sums.largest[row], factor, minus.of[row]));
      sums.largest[row] = largest;
      sums.totals[row] *= shrink;
#pragma unroll
      for (int i = 0; i < kSide / 2; ++i) {
        if (i / 2 % 2 == row) sums.values[i] *= shrink;
      }
    }
    return minus;
  }

  // From products with half of a tile's keys to weights, and on to the product with values, which
  // is begun.
  template <int kHalf>
  __device__ void take_values(Sums& sums, const Products& products, const Minus& minus) const {
    constexpr int kSixteens = kSide / 16;
    const float factor = shape_.scale * kLog2E;
    float totals[4] = {};
    unsigned pairs[kSixteens][4];
#pragma unroll
    for (int sixteen = 0; sixteen < kSixteens; ++sixteen) {
      float weights[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float product = products[(kHalf * kSixteens + sixteen) * 8 + i];
        weights[i] = power_of_two(fmaf(product, factor, minus.of[i / 2 % 2]));
        totals[i % 4] += weights[i];
      }
      round_sums(weights, 0, pairs[sixteen]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) sums.totals[row] += totals[row * 2] + totals[row * 2 + 1];
    const unsigned char* values = shared_.values[count_ % kForwardStages] + kHalf * kSquare;
    const std::uint64_t b = tile_descriptor(shared_address(values), 0);
    begin_products();
#pragma unroll
    for (int i = 0; i < kSixteens; ++i) {
      multiply<true>(sums.values, pairs[i], moved(b, i * kStep * kTileRow), 1);
    }
    end_product_group();
  }

  __device__ void finish(Sums& sums, int head, int square) {
    if (leads_group()) wait_for_reads<0>();
    sync_group();
    const int lane = threadIdx.x % kWarp;
    const int token = square * kSide + thread_of_group() / kWarp * 16 + lane / 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = sums.totals[row];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const float inverse = 1.0f / total;
#pragma unroll
      for (int i = 0; i < kSide / 2; ++i) {
        if (i / 2 % 2 == row) sums.values[i] *= inverse;
      }
      if (lane % 4 != 0) continue;
      log_sum_exp_[static_cast<std::int64_t>(head) * shape_.tokens + token + row * 8] =
          sums.largest[row] * shape_.scale + logf(total);
    }
    put_square(shared_.slots[group_], sums.values, 1.0f);
    publish_to_copies();
    sync_group();
    if (!leads_group()) return;
    store_tile_as(kEvictFirst, matrices_.out, column_of(shape_, head),
                  square_row_of(shape_, head, square), shared_.slots[group_]);
    end_store_group();
  }

  __device__ void sync_group() const {
    sync_threads(kForwardBarrier + group_, kGroupThreads);
  }

  ForwardShared& shared_;
  const ForwardMatrices& matrices_;
  float* const log_sum_exp_;
  const Shape& shape_;
  const int group_;
  unsigned count_ = 0, taken_ = 0;  // tiles of keys and items before
};

__global__ void __launch_bounds__(kForwardThreads, 1)
    forward_kernel(const __grid_constant__ ForwardMatrices matrices, float* log_sum_exp,
                   Shape shape) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ForwardShared& shared = shared_memory<ForwardShared>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kForwardStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kForwardGroups * kWarpsOfGroup);
    }
    for (int i = 0; i < kForwardGroups; ++i) {
      for (int j = 0; j < kQueryStages; ++j) {
        shared.queries_full[i][j].init(1);
        shared.queries_empty[i][j].init(kWarpsOfGroup);
      }
    }
    publish_barriers();
  }
  __syncthreads();
  const Items items(shape);
  const int group = group_of_block() - 1;
  if (group < 0) {
    give_registers_back<kLoadRegisters>();
    if (threadIdx.x == 0) load_items(shared, matrices, shape, items);
  } else {
    take_registers<kMultiplyRegisters>();
    ForwardGroup(shared, matrices, log_sum_exp, shape, group).run(items);
  }
#endif
}

}  // namespace lockstep::kernels::attention
