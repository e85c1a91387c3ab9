#pragma once

// What Hopper's multiprocessors (sm_90a) have for matrix products: tiles that the copy engine puts
// into shared memory, also into that of the other block of a cluster (TMA), barriers that count
// their bytes, and products of tiles by four warps at once (wgmma).

#include <cuda.h>

#include "kernels/approximate.cuh"
#include "kernels/device.cuh"
#include "kernels/tile_layout.cuh"

namespace lockstep::kernels {

/// The block's shared memory, whose size was given at the launch.
template <class T>
__device__ T& shared_memory() {
  extern __shared__ unsigned char memory[];
  return *reinterpret_cast<T*>(memory);
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// This block's place in its cluster.
__device__ inline unsigned rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

/// Of `threads` threads of the block, by a number from 1 to 15.
__device__ inline void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// The same without waiting.
__device__ inline void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// A barrier in shared memory: a phase ends with the last arrival and the last expected byte.
struct Barrier {
  std::uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)),
                 "r"(arrivals));
  }
  /// Of the thread that starts the copies.
  __device__ void arrive_and_expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)),
        "r"(bytes)
        : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state))
                 : "memory");
  }
  /// At the same barrier of another block of the cluster, or of this one. It tells of reads that
  /// have ended, so it need not publish what was written, which would take longer than a tile.
  __device__ void arrive_at(unsigned rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(&state)),
        "r"(rank)
        : "memory");
  }
  /// Until the phase of this parity has ended.
  __device__ void wait(unsigned parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n}" ::"r"(shared_address(&state)),
        "r"(parity)
        : "memory");
  }
};
/// Makes initialized barriers known to copies and to the cluster.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// A tile of a matrix into shared memory; `barrier` is told of its bytes.
__device__ inline void load_tile(void* to, const CUtensorMap& from, int column, int row,
                                 Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(row), "r"(shared_address(&barrier.state))
      : "memory");
}
// How the cache keeps a tile: as others, or as one that leaves it before them.
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000;

/// The same of a tile that the cache keeps so.
__device__ inline void load_tile_as(std::uint64_t kept, void* to, const CUtensorMap& from,
                                    int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(row), "r"(shared_address(&barrier.state)), "l"(kept)
      : "memory");
}
/// The same into the blocks of the cluster that have a bit in `blocks`, at the same place, with
/// their own barriers.
__device__ inline void load_tile_to(unsigned short blocks, void* to, const CUtensorMap& from,
                                    int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(row), "r"(shared_address(&barrier.state)), "h"(blocks)
      : "memory");
}

/// `bytes` from memory, a multiple of 16, as are both addresses.
__device__ inline void load_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier.state))
      : "memory");
}

/// What a thread wrote to shared memory is seen by copies that are started after this and a
/// barrier.
__device__ inline void publish_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// A tile from shared memory; copies of a thread end in groups.
__device__ inline void store_tile(const CUtensorMap& to, int column, int row, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
      "r"(column), "r"(row), "r"(shared_address(from))
      : "memory");
}
__device__ inline void store_tile_as(std::uint64_t kept, const CUtensorMap& to, int column, int row,
                                     const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint "
      "[%0, {%1, %2}], [%3], %4;" ::"l"(&to),
      "r"(column), "r"(row), "r"(shared_address(from)), "l"(kept)
      : "memory");
}
__device__ inline void end_store_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until at most so many groups still read shared memory.
template <int kGroups>
__device__ inline void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

/// Four matrices of 8 x 8, whose rows are at the addresses of lanes 0 to 7, 8 to 15 and so on. A
/// lane has two neighbours of each: of row lane / 4, from column lane % 4 * 2 on.
__device__ inline void load_matrices(unsigned address, unsigned (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}
__device__ inline void store_matrices(unsigned address, const unsigned (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]));
}

/// Between other uses of the sums' registers and products.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Four floats of memory that no other block touches, past the first cache, which would keep old
// ones. Those of one thread at one place happen in its order.
__device__ inline void write_floats(float* at, float4 values) {
  __stcg(reinterpret_cast<float4*>(at), values);
}
__device__ inline float4 read_floats(const float* at) {
  return __ldcg(reinterpret_cast<const float4*>(at));
}
/// Added where they lie, without waiting for them.
__device__ inline void add_floats(float* at, float4 values) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(values.x),
               "f"(values.y), "f"(values.z), "f"(values.w)
               : "memory");
}

/// A thread's registers from here on: what one group of warps gives back another may take.
template <int kCount>
__device__ inline void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace lockstep::kernels
