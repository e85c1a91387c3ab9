#pragma once

// Gradients of attention. A block takes a head's tiles of keys and values one after the other and,
// for each, the tiles of queries that see it. Of such a pair each group has 64 keys:
//
//     weights^T = exp(scale * keys * queries^T - log_sum_exp)   [64 keys, 128 queries]
//     inner^T   = weights^T * (values * gradient^T - dot)       (dot: of a row of `out` and
//     gradient) values'  += weights^T * gradient,  keys' += inner^T * queries queries' += inner *
//     keys                                  [64 queries of each group]
//
// The first operand of the products in the third line stays in registers; only `inner` goes through
// shared memory. What queries' has so far waits in memory, that is in the cache: the same thread
// adds to it every time, in the order of the keys, so that bits do not depend on timing.
//
// The product for queries' follows one pair later, between those of the next pair that the group
// needs first: so there is always something to multiply while exponentials are computed.

#include "kernels/attention_tiles.cuh"

namespace lockstep::kernels::attention {

inline constexpr int kStages = 2;  // pairs whose queries and gradients are loaded
inline constexpr int kTurns = 2;   // tiles of keys and values

// Named barriers.
inline constexpr int kInnerOfOther = 1;  // + group: the other group's `inner` is in shared memory;
                                         // + 2 after every second pair, because the other group
                                         // may already be at the next
inline constexpr int kOfGroup = 5;       // + group

struct alignas(1024) BackwardShared {
  unsigned char keys[kTurns][kTile], values[kTurns][kTile];
  unsigned char queries[kStages][kTile], gradients[kStages][kTile];
  unsigned char inner[2][2][kTile];  // of this and the last pair; by the half of the queries
  unsigned char slots[kGroups][2][kSquare];  // for results on their way to memory
  float rows[kStages][2][kTokens];           // -log_sum_exp in powers of two, and dot
  Barrier full[kStages], empty[kStages];
  Barrier turn_full[kTurns], turn_empty[kTurns];
};
static_assert(sizeof(BackwardShared) <= kMostShared);

struct BackwardMatrices {
  CUtensorMap qkv, gradient, qkv_gradient;
};

/// The pairs of a block, in their order. A head's pairs may be divided among `parts` blocks, 1 or
/// 2, by the tiles of keys: 0, 3, 4, 7 and so on for one, the others for the other, as many pairs
/// for each. Queries come in rising order for one tile of keys and in falling order for the next,
/// so that those that were used last, and may still be in the cache, are used first.
struct Pairs {
  int tiles, parts, items;
  int item, key, step = 0;
  int turn = 0;  // tiles of keys that came before

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
  __device__ bool is_first_of_turn() const { return step == 0; }
  __device__ bool is_last_of_turn() const { return key + step == tiles - 1; }

  __device__ void advance() {
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
};

/// One thread's work. `rows` has a tile's values of BackwardShared::rows after the other.
__device__ inline void load_pairs(BackwardShared& shared, const BackwardMatrices& matrices,
                                  const float* rows, const Shape& shape, Pairs pairs) {
  unsigned stage = 0, parity = 1;  // a fresh barrier's last phase counts as ended
  for (; !pairs.is_done(); pairs.advance()) {
    const int head = pairs.head(), query = pairs.query();
    if (pairs.is_first_of_turn()) {
      const unsigned place = pairs.turn % kTurns;
      shared.turn_empty[place].wait(pairs.turn / kTurns % 2 ^ 1);
      Barrier& full = shared.turn_full[place];
      full.arrive_and_expect(2 * kTile);
      const int row = row_of(shape, head, pairs.key);
      load_tile(shared.keys[place], matrices.qkv, column_of(shape, head, 1), row, full);
      load_tile(shared.values[place], matrices.qkv, column_of(shape, head, 2), row, full);
    }
    shared.empty[stage].wait(parity);
    Barrier& full = shared.full[stage];
    full.arrive_and_expect(2 * kTile + static_cast<int>(sizeof(shared.rows[stage])));
    const int row = row_of(shape, head, query);
    load_tile(shared.queries[stage], matrices.qkv, column_of(shape, head), row, full);
    load_tile(shared.gradients[stage], matrices.gradient, column_of(shape, head), row, full);
    load_bytes(shared.rows[stage],
               rows + (std::int64_t{head} * shape.tiles() + query) * 2 * kTokens,
               sizeof(shared.rows[stage]), full);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

/// What one of the groups that multiply does.
class BackwardGroup {
 public:
  __device__ BackwardGroup(BackwardShared& shared, const BackwardMatrices& matrices, float* scratch,
                           const Shape& shape, const Pairs& pairs, int group)
      : shared_(shared),
        matrices_(matrices),
        scratch_(scratch),
        shape_(shape),
        pairs_(pairs),
        last_(pairs),
        group_(group) {}

  __device__ void run() {
    if (pairs_.is_done()) return;
    tell_of_inner(0);
    while (!pairs_.is_done()) take_turn();
    float queries[kSide / 2];
    wait_for_inner();
    begin_products();
    multiply_queries(queries);
    pass_queries_on<false>(queries);
    if (copies()) wait_for_reads<0>();
  }

 private:
  using Weights = float[kTokens / 2];  // a thread's, of [64 keys, 128 queries]
  using Result = float[kSide / 2];     // of [64 tokens, 64 columns]

  __device__ bool copies() const { return thread_of_group() == 0; }
  __device__ static bool releases() { return threadIdx.x % kWarp == 0; }
  __device__ void sync_group() const { sync_threads(kOfGroup + group_, kGroupThreads); }

  // That this group's is there, of the pair before `count`.
  __device__ void tell_of_inner(unsigned count) const {
    arrive_threads(kInnerOfOther + 1 - group_ + count % 2 * 2, kGroups * kGroupThreads);
  }
  // Until both groups' of the last pair is there.
  __device__ void wait_for_inner() const {
    sync_threads(kInnerOfOther + group_ + count_ % 2 * 2, kGroups * kGroupThreads);
  }

  // All queries that see a tile of keys.
  __device__ void take_turn() {
    Result keys, values;  // their gradients
    const unsigned turn = pairs_.turn % kTurns;
    shared_.turn_full[turn].wait(pairs_.turn / kTurns % 2);
    bool is_last = false;
    for (bool adds = false; !is_last; adds = true) {
      is_last = pairs_.is_last_of_turn();
      take_pair(turn, adds, keys, values);
      last_ = pairs_;
      pairs_.advance();
      ++count_;
    }
    finish_turn(keys, values);
  }

  __device__ void take_pair(unsigned turn, bool adds, Result& keys, Result& values) {
    const unsigned stage = count_ % kStages;
    shared_.full[stage].wait(count_ / kStages % 2);
    Weights weights, inner;
    Result queries;  // of the last pair
    begin_products();
    multiply_heads(weights, shared_.keys[turn], shared_.queries[stage]);
    multiply_heads(inner, shared_.values[turn], shared_.gradients[stage]);
    wait_for_products<1>();
    weigh(weights, shared_.rows[stage][0]);
    // Before the first pair there is nothing to multiply yet, but this is simpler, and discarded.
    wait_for_inner();
    begin_products();
    multiply_queries(queries);
    wait_for_products<1>();
    scale_inner(inner, weights, shared_.rows[stage][1]);
    unsigned weight_pairs[kSteps][4], inner_pairs[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      round_sums(weights, i, weight_pairs[i]);
      round_sums(inner, i, inner_pairs[i]);
      store_matrices(matrices_in(inner_square(count_, i / 4), i % 4), inner_pairs[i]);
    }
    publish_to_copies();
    begin_products();
    multiply_tokens(values, weight_pairs, shared_.gradients[stage], adds);
    multiply_tokens(keys, inner_pairs, shared_.queries[stage], adds);
    end_product_group();
    pass_queries_on<true>(queries);
    wait_for_products<0>();
    if (releases()) shared_.empty[stage].arrive();
  }

  // This group's rows, of keys, in the half of the queries.
  __device__ unsigned char* inner_square(unsigned count, int half) {
    return shared_.inner[count % 2][half] + group_ * kSquare;
  }

  // Of this group's 64 keys or values and 128 queries or gradients.
  __device__ void multiply_heads(Weights& sums, const unsigned char* tokens,
                                 const unsigned char* others) const {
    const std::uint64_t a = tile_descriptor(shared_address(tokens + group_ * kSquare), 0);
    const std::uint64_t b = tile_descriptor(shared_address(others), 0);
#pragma unroll
    for (int i = 0; i < kDeeps; ++i) {
      constexpr int kBytes = kStep * static_cast<int>(sizeof(Bf16));
      multiply<false, false>(sums, moved(a, i * kBytes), moved(b, i * kBytes), i > 0);
    }
    end_product_group();
  }

  __device__ static void multiply_tokens(Result& sums, const unsigned (&pairs)[kSteps][4],
                                         const unsigned char* others, bool adds) {
    const std::uint64_t b = tile_descriptor(shared_address(others), 0);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      multiply<true>(sums, pairs[i], moved(b, i * kStep * kTileRow), adds || i > 0);
    }
  }

  // Of the last pair, when both groups have written its `inner`.
  __device__ void multiply_queries(Result& sums) {
    const std::uint64_t a =
        tile_descriptor(shared_address(shared_.inner[(count_ - 1) % 2][group_]), 0);
    const std::uint64_t b = tile_descriptor(shared_address(shared_.keys[last_.turn % kTurns]), 0);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      constexpr int kBytes = kStep * kTileRow;
      multiply<true, true>(sums, moved(a, i * kBytes), moved(b, i * kBytes), i > 0);
    }
    end_product_group();
  }

  __device__ void weigh(Weights& weights, const float* minus_log_sums) const {
    const float factor = shape_.scale * kLog2E;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int eight = 0; eight < kTokens / 8; ++eight) {
      const int query = eight * 8 + lane % 4 * 2;
      const float2 minus = *reinterpret_cast<const float2*>(minus_log_sums + query);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& weight = weights[eight * 4 + i];
        weight = power_of_two(fmaf(weight, factor, i % 2 == 0 ? minus.x : minus.y));
      }
    }
    if (pairs_.query() == pairs_.key) mask(weights);
  }

  // Queries see no later keys.
  __device__ void mask(Weights& weights) const {
    const int lane = threadIdx.x % kWarp;
    const int first = group_ * kSide + thread_of_group() / kWarp * 16 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int query = i / 4 * 8 + i % 2, key = first + i / 2 % 2 * 8;
      if (query < key) weights[i] = 0.0f;
    }
  }

  __device__ static void scale_inner(Weights& inner, const Weights& weights, const float* dots) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int eight = 0; eight < kTokens / 8; ++eight) {
      const float2 dot = *reinterpret_cast<const float2*>(dots + eight * 8 + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = inner[eight * 4 + i];
        value = weights[eight * 4 + i] * (value - (i % 2 == 0 ? dot.x : dot.y));
      }
    }
  }

  // Gradients of the last pair's keys and values, which are complete, go to memory.
  __device__ void finish_turn(const Result& keys, const Result& values) {
    wait_for_slots();
    put_square(shared_.slots[group_][0], values, 1.0f);
    put_square(shared_.slots[group_][1], keys, shape_.scale);
    publish_to_copies();
    sync_group();
    if (!copies()) return;
    const int head = last_.head(), row = row_of(shape_, head, last_.key) + group_ * kSide;
    store_tile(matrices_.qkv_gradient, column_of(shape_, head, 2), row, shared_.slots[group_][0]);
    store_tile(matrices_.qkv_gradient, column_of(shape_, head, 1), row, shared_.slots[group_][1]);
    end_store_group();
  }

  // The last pair's gradients of queries are added to what there is, or complete. Products of a
  // pair that follows it may be on their way.
  template <bool kFollowed>
  __device__ void pass_queries_on(Result& queries) {
    if (last_.parts == 1 && last_.query() == last_.key && count_ > 0) {
      Result earlier;
      read_earlier(earlier);
      wait_for_queries<kFollowed>();
      finish_queries(queries, earlier);
    } else {
      wait_for_queries<kFollowed>();
      if (count_ > 0) keep_queries(queries);
    }
  }

  // Then the last pair's `inner` may be written over and, at the end of its turn, its keys.
  template <bool kFollowed>
  __device__ void wait_for_queries() {
    wait_for_products<kFollowed ? 1 : 0>();
    if (kFollowed) tell_of_inner(count_ + 1);
    if (count_ > 0 && last_.is_last_of_turn() && releases()) {
      shared_.turn_empty[last_.turn % kTurns].arrive();
    }
  }

  static constexpr int kFours = kSide / 8;

  // Where a thread keeps four of its values, until it adds to them.
  __device__ float* kept(int four) const {
    // A block's own where it has whole heads, else the item's.
    const std::int64_t owner = last_.parts == 1 ? blockIdx.x : last_.item;
    const std::int64_t tile = owner * last_.tiles + last_.query();
    return scratch_ + tile * kTokens * kHeadSize +
           ((four * kGroups + group_) * kGroupThreads + thread_of_group()) * 4;
  }

  __device__ void keep_queries(const Result& queries) {
    const auto four = [&](int i) {
      return make_float4(queries[i * 4], queries[i * 4 + 1], queries[i * 4 + 2],
                         queries[i * 4 + 3]);
    };
    if (last_.key == last_.first_key()) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) write_floats(kept(i), four(i));
    } else {
#pragma unroll
      for (int i = 0; i < kFours; ++i) add_floats(kept(i), four(i));
    }
  }

  __device__ void read_earlier(Result& earlier) const {
    const bool has_any = last_.key != last_.first_key();
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 four = has_any ? read_floats(kept(i)) : make_float4(0, 0, 0, 0);
      earlier[i * 4] = four.x, earlier[i * 4 + 1] = four.y;
      earlier[i * 4 + 2] = four.z, earlier[i * 4 + 3] = four.w;
    }
  }

  __device__ void finish_queries(Result& queries, const Result& earlier) {
#pragma unroll
    for (int i = 0; i < kSide / 2; ++i) queries[i] += earlier[i];
    wait_for_slots();
    put_square(shared_.slots[group_][0], queries, shape_.scale);
    publish_to_copies();
    sync_group();
    if (!copies()) return;
    const int head = last_.head(), row = row_of(shape_, head, last_.query()) + group_ * kSide;
    store_tile(matrices_.qkv_gradient, column_of(shape_, head), row, shared_.slots[group_][0]);
    end_store_group();
  }

  __device__ void wait_for_slots() const {
    if (copies()) wait_for_reads<0>();
    sync_group();
  }

  BackwardShared& shared_;
  const BackwardMatrices& matrices_;
  float* const scratch_;
  const Shape shape_;
  Pairs pairs_, last_;
  const int group_;
  unsigned count_ = 0;  // pairs before this one
};

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardMatrices matrices, const float* rows,
                    float* scratch, Shape shape, int parts) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  BackwardShared& shared = shared_memory<BackwardShared>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kArrivals);
    }
    for (int i = 0; i < kTurns; ++i) {
      shared.turn_full[i].init(1);
      shared.turn_empty[i].init(kArrivals);
    }
    publish_barriers();
  }
  __syncthreads();
  const Pairs pairs(shape, parts);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (group < 0) {
    give_registers_back<kFewRegisters>();
    if (threadIdx.x == 0) load_pairs(shared, matrices, rows, shape, pairs);
  } else {
    take_registers<kManyRegisters>();
    BackwardGroup(shared, matrices, scratch, shape, pairs, group).run();
  }
#endif
}

}  // namespace lockstep::kernels::attention
