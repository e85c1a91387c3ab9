#pragma once

// Attention, forward. A block takes 256 queries of a head, 128 for each group, in two halves of 64
// that take turns: while the exponentials of one half are computed, the products of the other and
// of the other group are. Keys and values come in tiles of 128, from the first on; what was summed
// up is scaled down whenever a larger exponent appears.

#include "kernels/attention_tiles.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kForwardStages = 4;
inline constexpr int kQueryStages = 2;     // of one item's queries
inline constexpr int kForwardBarrier = 1;  // + group, of its threads

struct alignas(1024) ForwardShared {
  unsigned char queries[kGroups][kQueryStages][kTile];
  unsigned char keys[kForwardStages][kTile], values[kForwardStages][kTile];
  unsigned char slots[kGroups][kTile];  // for results on their way to memory
  Barrier full[kForwardStages], empty[kForwardStages];
  Barrier queries_full[kGroups][kQueryStages], queries_empty[kGroups][kQueryStages];
};
static_assert(sizeof(ForwardShared) <= kMostShared);

struct ForwardMatrices {
  CUtensorMap qkv, out;
};

/// The items of a block: a head and two neighbouring tiles of queries. Later ones see more keys.
/// Where there are many heads a block takes whole ones, whose keys then stay in the cache; else all
/// blocks take the long items first, and the block that had the shortest is the next to take one.
struct Items {
  const Shape& shape;
  const bool takes_heads;
  int round = 0, place;

  __device__ Items(const Shape& shape, bool takes_heads)
      : shape(shape),
        takes_heads(takes_heads),
        place(static_cast<int>(blockIdx.x) * (takes_heads ? in_head() : 1)) {}

  __device__ int in_head() const { return (shape.tiles() + 1) / kGroups; }
  __device__ bool is_done() const { return place >= shape.all_heads() * in_head(); }
  __device__ int head() const {
    return takes_heads ? place / in_head() : place % shape.all_heads();
  }
  __device__ int item() const {
    return in_head() - 1 - (takes_heads ? place % in_head() : place / shape.all_heads());
  }
  __device__ int query_of(int group) const { return item() * kGroups + group; }
  /// Tiles of keys that the group's queries see; 0 where there are no such queries.
  __device__ int keys_of(int group) const {
    const int query = query_of(group);
    return query < shape.tiles() ? query + 1 : 0;
  }
  __device__ int keys() const { return keys_of(1) > 0 ? keys_of(1) : keys_of(0); }

  __device__ void advance() {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    if (takes_heads) {
      if (++place % in_head() == 0) place += (blocks - 1) * in_head();
      return;
    }
    ++round;
    place = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }
};

/// One thread's work.
__device__ inline void load_items(ForwardShared& shared, const ForwardMatrices& matrices,
                                  const Shape& shape, Items items) {
  unsigned stage = 0, parity = 1;  // a fresh barrier's last phase counts as ended
  unsigned taken[kGroups] = {};    // items before
  for (; !items.is_done(); items.advance()) {
    const int head = items.head();
    for (int group = 0; group < kGroups; ++group) {
      if (items.keys_of(group) == 0) continue;
      const unsigned place = taken[group] % kQueryStages;
      shared.queries_empty[group][place].wait(taken[group]++ / kQueryStages % 2 ^ 1);
      Barrier& full = shared.queries_full[group][place];
      full.arrive_and_expect(kTile);
      load_tile(shared.queries[group][place], matrices.qkv, column_of(shape, head),
                row_of(shape, head, items.query_of(group)), full);
    }
    for (int key = 0; key < items.keys(); ++key) {
      shared.empty[stage].wait(parity);
      Barrier& full = shared.full[stage];
      full.arrive_and_expect(2 * kTile);
      const int row = row_of(shape, head, key);
      load_tile(shared.keys[stage], matrices.qkv, column_of(shape, head, 1), row, full);
      load_tile(shared.values[stage], matrices.qkv, column_of(shape, head, 2), row, full);
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
      const int keys = items.keys_of(group_);
      if (keys > 0) take_item(items, keys);
      for (int key = keys; key < items.keys(); ++key) pass_over();
    }
    if (copies()) wait_for_reads<0>();
  }

 private:
  /// A half's state: rows `lane / 4` and, as [1], eight below.
  struct Half {
    float sums[kSide / 2];        // [64 queries, 64 columns]
    float largest[2], totals[2];  // totals of this lane alone
  };

  __device__ bool copies() const { return thread_of_group() == 0; }
  __device__ static bool releases() { return threadIdx.x % kWarp == 0; }

  __device__ void take_item(const Items& items, int keys) {
    Half first, second;
    begin(first);
    begin(second);
    const unsigned place = taken_ % kQueryStages;
    shared_.queries_full[group_][place].wait(taken_++ / kQueryStages % 2);
    const unsigned char* queries = shared_.queries[group_][place];
    for (int key = 0; key < keys - 1; ++key) take_keys<kTokens>(first, second, queries);
    // Of the last tile the first half sees the first half.
    take_keys<kSide>(first, second, queries);
    if (releases()) shared_.queries_empty[group_][place].arrive();
    finish(items, first, second);
  }

  // A tile of keys, of which the first half of the queries sees `kSeen`: all, or half of the last
  // tile, of which no query sees what is later than itself.
  template <int kSeen>
  __device__ void take_keys(Half& first, Half& second, const unsigned char* queries) {
    constexpr bool kMasked = kSeen < kTokens;
    const unsigned stage = count_ % kForwardStages;
    shared_.full[stage].wait(count_ / kForwardStages % 2);
    float products[kSeen / 2], others[kTokens / 2];
    begin_products();
    multiply_keys(products, queries, stage);
    multiply_keys(others, queries + kSquare, stage);
    wait_for_products<1>();
    if (kMasked) mask(products, 0);
    take_half(first, products, stage);
    wait_for_products<1>();
    if (kMasked) mask(others, 1);
    take_half(second, others, stage);
    wait_for_products<0>();
    if (releases()) shared_.empty[stage].arrive();
    ++count_;
  }

  // Keys that only the other group's queries see.
  __device__ void pass_over() {
    const unsigned stage = count_ % kForwardStages;
    if (releases()) {
      shared_.full[stage].wait(count_ / kForwardStages % 2);
      shared_.empty[stage].arrive();
    }
    ++count_;
  }

  __device__ static void begin(Half& half) {
#pragma unroll
    for (float& sum : half.sums) sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) half.largest[i] = -INFINITY, half.totals[i] = 0.0f;
  }

  template <int kSums>
  __device__ void multiply_keys(float (&products)[kSums], const unsigned char* queries,
                                unsigned stage) const {
    const std::uint64_t a = tile_descriptor(shared_address(queries), 0);
    const std::uint64_t b = tile_descriptor(shared_address(shared_.keys[stage]), 0);
#pragma unroll
    for (int i = 0; i < kDeeps; ++i) {
      constexpr int kBytes = kStep * static_cast<int>(sizeof(Bf16));
      multiply<false, false>(products, moved(a, i * kBytes), moved(b, i * kBytes), i > 0);
    }
    end_product_group();
  }

  // From products with keys to weights, and on to the product with values, which is begun.
  template <int kSums>
  __device__ void take_half(Half& half, float (&products)[kSums], unsigned stage) const {
    weigh(half, products);
    constexpr int kSteps = kSums * 2 / kStep;
    unsigned pairs[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) round_sums(products, i, pairs[i]);
    const std::uint64_t b = tile_descriptor(shared_address(shared_.values[stage]), 0);
    begin_products();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      multiply<true>(half.sums, pairs[i], moved(b, i * kStep * kTileRow), 1);
    }
    end_product_group();
  }

  template <int kSums>
  __device__ static void mask(float (&products)[kSums], int which) {
    const int lane = threadIdx.x % kWarp;
    const int first = which * kSide + thread_of_group() / kWarp * 16 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int key = i / 4 * 8 + i % 2, query = first + i / 2 % 2 * 8;
      if (key > query) products[i] = -INFINITY;
    }
  }

  template <int kSums>
  __device__ void weigh(Half& half, float (&products)[kSums]) const {
    const float factor = shape_.scale * kLog2E;
    float minus[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = half.largest[row];
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i / 2 % 2 == row) largest = fmaxf(largest, products[i]);
      }
      // Four lanes share a row.
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      minus[row] = -largest * factor;
      const float shrink = power_of_two(fmaf(half.largest[row], factor, minus[row]));
      half.largest[row] = largest;
      half.totals[row] *= shrink;
#pragma unroll
      for (int i = 0; i < kSide / 2; ++i) {
        if (i / 2 % 2 == row) half.sums[i] *= shrink;
      }
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      products[i] = power_of_two(fmaf(products[i], factor, minus[i / 2 % 2]));
      half.totals[i / 2 % 2] += products[i];
    }
  }

  __device__ void finish(const Items& items, Half& first, Half& second) {
    const int head = items.head(), query = items.query_of(group_);
    if (copies()) wait_for_reads<0>();
    sync_group();
    finish_half(first, 0, head, query);
    finish_half(second, 1, head, query);
    publish_to_copies();
    sync_group();
    if (!copies()) return;
    store_tile(matrices_.out, column_of(shape_, head), row_of(shape_, head, query),
               shared_.slots[group_]);
    end_store_group();
  }

  __device__ void finish_half(Half& half, int which, int head, int query) {
    const int lane = threadIdx.x % kWarp;
    const int token = query * kTokens + which * kSide + thread_of_group() / kWarp * 16 + lane / 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = half.totals[row];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const float inverse = 1.0f / total;
#pragma unroll
      for (int i = 0; i < kSide / 2; ++i) {
        if (i / 2 % 2 == row) half.sums[i] *= inverse;
      }
      if (lane % 4 != 0) continue;
      log_sum_exp_[static_cast<std::int64_t>(head) * shape_.tokens + token + row * 8] =
          half.largest[row] * shape_.scale + logf(total);
    }
    put_square(shared_.slots[group_] + which * kSquare, half.sums, 1.0f);
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

__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardMatrices matrices, float* log_sum_exp,
                   Shape shape, bool takes_heads) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ForwardShared& shared = shared_memory<ForwardShared>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kForwardStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kArrivals);
    }
    for (int i = 0; i < kGroups; ++i) {
      for (int j = 0; j < kQueryStages; ++j) {
        shared.queries_full[i][j].init(1);
        shared.queries_empty[i][j].init(kWarpsOfGroup);
      }
    }
    publish_barriers();
  }
  __syncthreads();
  const Items items(shape, takes_heads);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (group < 0) {
    give_registers_back<kFewRegisters>();
    if (threadIdx.x == 0) load_items(shared, matrices, shape, items);
  } else {
    take_registers<kManyRegisters>();
    ForwardGroup(shared, matrices, log_sum_exp, shape, group).run(items);
  }
#endif
}

}  // namespace lockstep::kernels::attention
