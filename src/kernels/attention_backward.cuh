#pragma once

// Gradients of attention. A block takes a head's tiles of keys and values one after the other and,
// for each, the tiles of queries that see it. Of such a pair each group has 64 keys:
//
//     weights^T = exp(scale * keys * queries^T - log_sum_exp)     [64 keys, 128 queries]
//     inner^T   = weights^T * (values * gradient^T - dot)         dot: of rows, out * gradient
//     values'  += weights^T * gradient,  keys' += inner^T * queries
//     queries' += inner * keys                                    [64 queries of each group]
//
// The first operand of the products in the third line stays in registers; only `inner` goes through
// shared memory. What queries' has so far waits in memory, that is in the cache: the same thread
// adds to it every time, in the order of the keys, so that bits do not depend on timing.
//
// The product for queries' follows one pair later, so that no group waits for the other's `inner`.
// There are but two warps for each scheduler: what takes long is begun early, and what can wait is
// done while products are computed.

#include "kernels/attention_pairs.cuh"

namespace lockstep::kernels::attention {

// Registers of a thread that loads, and of one that multiplies.
inline constexpr int kLoaderRegisters = 24, kGroupRegisters = 240;

/// What one of the groups that multiply does.
class BackwardGroup {
 public:
  __device__ BackwardGroup(BackwardShared& shared, const BackwardMatrices& matrices, float* scratch,
                           float* query_sums, const Shape& shape, const Pairs& pairs, int group)
      : shared_(shared),
        matrices_(matrices),
        scratch_(scratch),
        query_sums_(query_sums),
        shape_(shape),
        pairs_(pairs),
        last_(pairs),
        group_(group) {}

  __device__ void run() {
    if (pairs_.is_done()) return;
    tell_of_inner(0);
    wait_for_pair();
    Result keys, values;  // their gradients
    while (!pairs_.is_done()) take_pair(keys, values);
    Result queries, earlier;
    wait_for_inner(pairs_.count);
    begin_products();
    multiply_queries(queries, pairs_.count);
    wait_for_products<0>();
    read_earlier(earlier);
    pass_queries_on(queries, earlier);
    if (leads_group()) wait_for_reads<0>();
  }

 private:
  using Weights = float[kTokens / 2];  // a thread's, of [64 keys, 128 queries]
  using Result = float[kSide / 2];     // of [64 tokens, 64 columns]
  static constexpr int kHalf = kSteps / 2;

  __device__ void sync_group() const { sync_threads(kOfGroup + group_, kGroupThreads); }

  // That this group's is there, of the pair before `count`, and that it has read that before.
  __device__ void tell_of_inner(unsigned count) const {
    arrive_threads(kInnerOfOther + 1 - group_ + count % 2 * 2, kGroups * kGroupThreads);
  }
  // Until both groups' of the pair before `count` is there.
  __device__ void wait_for_inner(unsigned count) const {
    sync_threads(kInnerOfOther + group_ + count % 2 * 2, kGroups * kGroupThreads);
  }
  __device__ void wait_for_pair() const {
    if (pairs_.is_first_of_turn()) shared_.turn_full[pairs_.place()].wait(pairs_.place_parity());
    shared_.full[pairs_.stage()].wait(pairs_.stage_parity());
  }

  // While the second product is computed there are exponentials of the first, half of them; the
  // other half, while what the first half is good for is done.
  __device__ void take_pair(Result& keys, Result& values) {
    const Pairs pair = pairs_;
    const unsigned stage = pair.stage(), place = pair.place();
    const float *minus_log_sums = shared_.rows[stage][0], *dots = shared_.rows[stage][1];
    RowValues minus[kHalf], other_minus[kHalf], dot[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) minus[i] = row_values(minus_log_sums, i);
    Weights weights, inner;
    begin_products();
    multiply_heads(weights, shared_.keys[place], shared_.queries[stage]);
    multiply_heads(inner, shared_.values[place], shared_.gradients[stage]);
    wait_for_products<1>();
#pragma unroll
    for (int i = 0; i < kHalf; ++i) weigh(weights, i, minus[i]);
    if (pair.is_diagonal()) mask(weights);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      other_minus[i] = row_values(minus_log_sums, i + kHalf);
      dot[i] = row_values(dots, i);
    }
    wait_for_products<0>();
    unsigned weight_pairs[kSteps][4], inner_pairs[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i < kHalf) weigh(weights, i + kHalf, other_minus[i]);
      scale_inner(inner, weights, i, i < kHalf ? dot[i] : row_values(dots, i));
      round_sums(weights, i, weight_pairs[i]);
      round_sums(inner, i, inner_pairs[i]);
    }
    wait_for_inner(pair.count);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      unsigned char* square = shared_.inner[pair.count % kInners][i / kHalf] + group_ * kSquare;
      store_matrices(matrices_in(square, i % kHalf), inner_pairs[i]);
    }
    publish_to_copies();
    Result queries, earlier;  // of the last pair
    read_earlier(earlier);
    begin_products();
    // Before the first pair there is nothing to multiply yet, but this is simpler, and discarded.
    multiply_queries(queries, pair.count);
    multiply_tokens(values, weight_pairs, shared_.gradients[stage], !pair.is_first_of_turn());
    multiply_tokens(keys, inner_pairs, shared_.queries[stage], !pair.is_first_of_turn());
    end_product_group();
    wait_for_products<1>();
    if (pair.count > 0) {
      if (last_.is_last_of_turn() && leads_warp()) shared_.turn_empty[last_.place()].arrive();
      pass_queries_on(queries, earlier);
    }
    pairs_.advance();
    if (!pairs_.is_done()) wait_for_pair();
    wait_for_products<0>();
    tell_of_inner(pair.count + 1);
    arrive_threads(kRead + static_cast<int>(stage), kReadThreads);
    last_ = pair;
    if (pair.is_last_of_turn()) finish_turn(keys, values);
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

  // Of the last pair, that before `count`, when both groups have written its `inner`.
  __device__ void multiply_queries(Result& sums, unsigned count) const {
    const std::uint64_t a =
        tile_descriptor(shared_address(shared_.inner[(count - 1) % kInners][group_]), 0);
    const std::uint64_t b = tile_descriptor(shared_address(shared_.keys[last_.place()]), 0);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      constexpr int kBytes = kStep * kTileRow;
      multiply<true, true>(sums, moved(a, i * kBytes), moved(b, i * kBytes), i > 0);
    }
    end_product_group();
  }

  // Of 16 queries.
  __device__ void weigh(Weights& weights, int sixteen, const RowValues& minus_log_sums) const {
    const float factor = shape_.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& weight = weights[sixteen * 8 + i];
      weight = power_of_two(fmaf(weight, factor, minus_log_sums.of(i)));
    }
  }

  __device__ static void scale_inner(Weights& inner, const Weights& weights, int sixteen,
                                     const RowValues& dots) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& value = inner[sixteen * 8 + i];
      value = weights[sixteen * 8 + i] * (value - dots.of(i));
    }
  }

  // Queries see no later keys. Of the first half there are weights already, of the second not yet.
  __device__ void mask(Weights& weights) const {
    const int lane = threadIdx.x % kWarp;
    const int first = group_ * kSide + thread_of_group() / kWarp * 16 + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int query = i / 4 * 8 + i % 2, key = first + i / 2 % 2 * 8;
      if (query < key) weights[i] = i < kTokens / 4 ? 0.0f : -INFINITY;
    }
  }

  // Gradients of the last pair's keys and values, which are complete, go to memory.
  __device__ void finish_turn(const Result& keys, const Result& values) const {
    wait_for_slots();
    put_square(shared_.slots[group_][0], values, 1.0f);
    put_square(shared_.slots[group_][1], keys, shape_.scale);
    publish_to_copies();
    sync_group();
    if (!leads_group()) return;
    const int head = last_.head(), row = row_of(shape_, head, last_.key) + group_ * kSide;
    store_tile_as(kEvictFirst, matrices_.qkv_gradient, column_of(shape_, head, 2), row,
                  shared_.slots[group_][0]);
    store_tile_as(kEvictFirst, matrices_.qkv_gradient, column_of(shape_, head, 1), row,
                  shared_.slots[group_][1]);
    end_store_group();
  }

  // Whether the last pair's gradients of queries are complete, with what there was before.
  __device__ bool completes() const {
    return last_.parts == 1 && last_.is_diagonal();
  }

  __device__ void pass_queries_on(Result& queries, const Result& earlier) const {
    if (completes()) {
      finish_queries(queries, earlier);
    } else {
      keep_queries(queries);
    }
  }

  static constexpr int kFours = kSide / 8;

  // Where this thread keeps values of the last pair's queries until it adds to them: four, and the
  // next four kApart later.
  static constexpr int kApart = kGroups * kGroupThreads * 4;
  __device__ float* kept() const {
    // A block's own where it has whole heads, else the item's.
    const std::int64_t owner = last_.parts == 1 ? blockIdx.x : last_.item;
    const std::int64_t tile = owner * last_.tiles + last_.query();
    return scratch_ + tile * kTokens * kHeadSize + (group_ * kGroupThreads + thread_of_group()) * 4;
  }

  __device__ void keep_queries(const Result& queries) const {
    float* at = kept();
    const auto four = [&](int i) {
      return make_float4(queries[i * 4], queries[i * 4 + 1], queries[i * 4 + 2],
                         queries[i * 4 + 3]);
    };
    if (last_.key == last_.first_key()) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) write_floats(at + i * kApart, four(i));
    } else {
#pragma unroll
      for (int i = 0; i < kFours; ++i) add_floats(at + i * kApart, four(i));
    }
  }

  // Early, so that they arrive while products are computed.
  __device__ void read_earlier(Result& earlier) const {
    const float* at = kept();
    const bool has_any = completes() && last_.key != last_.first_key();
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 four = has_any ? read_floats(at + i * kApart) : make_float4(0, 0, 0, 0);
      earlier[i * 4] = four.x, earlier[i * 4 + 1] = four.y;
      earlier[i * 4 + 2] = four.z, earlier[i * 4 + 3] = four.w;
    }
  }

  __device__ void finish_queries(Result& queries, const Result& earlier) const {
#pragma unroll
    for (int i = 0; i < kSide / 2; ++i) queries[i] += earlier[i];
    wait_for_slots();
    put_square(shared_.slots[group_][0], queries, shape_.scale);
    auto* sums = reinterpret_cast<float(*)[kSide]>(shared_.slots[group_][1]);  // of warps
    put_sums(queries, sums[thread_of_group() / kWarp]);
    publish_to_copies();
    sync_group();
    const int head = last_.head(), row = row_of(shape_, head, last_.query()) + group_ * kSide;
    const int column = thread_of_group();
    if (column < kSide) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarpsOfGroup; ++i) sum += sums[i][column];
      query_sums_of(query_sums_, shape_, head, row, kSide)[column] = sum * shape_.scale;
    }
    if (!leads_group()) return;
    store_tile_as(kEvictFirst, matrices_.qkv_gradient, column_of(shape_, head), row,
                  shared_.slots[group_][0]);
    end_store_group();
  }

  __device__ static void put_sums(const Result& queries, float* sums) {
    float columns[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      columns[i] = queries[i / 2 * 4 + i % 2] + queries[i / 2 * 4 + 2 + i % 2];
    }
    put_column_sums(columns, sums);
  }

  __device__ void wait_for_slots() const {
    if (leads_group()) wait_for_reads<0>();
    sync_group();
  }

  BackwardShared& shared_;
  const BackwardMatrices& matrices_;
  float* const scratch_;
  float* const query_sums_;
  const Shape shape_;
  Pairs pairs_, last_;
  const int group_;
};

__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const __grid_constant__ BackwardMatrices matrices, const float* rows,
                    float* scratch, float* query_sums, Shape shape, int parts) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  BackwardShared& shared = shared_memory<BackwardShared>();
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const Pairs pairs(shape, parts);
  const int group = group_of_block() - 1;
  if (group < 0) {
    give_registers_back<kLoaderRegisters>();
    if (threadIdx.x < kWarp) load_pairs(shared, matrices, rows, shape, pairs);
  } else {
    take_registers<kGroupRegisters>();
    BackwardGroup(shared, matrices, scratch, query_sums, shape, pairs, group).run();
  }
#endif
}

}  // namespace lockstep::kernels::attention
