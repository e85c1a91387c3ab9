#pragma once

// What Hopper's multiprocessors (sm_90a) have for matrix products: tiles that the copy engine puts
// into shared memory, also into that of the other block of a cluster (TMA), barriers that count
// their bytes, and products of tiles by four warps at once (wgmma).

#include <cuda.h>

#include "kernels/device.cuh"

namespace lockstep::kernels {

/// Threads of a group: four warps, which multiply together.
inline constexpr int kGroupThreads = 128;
/// A row of a tile in shared memory, in bytes: within eight rows, 16 bytes at `place` of row `r`
/// lie at `place ^ r`, so that no two threads want the same bank.
inline constexpr int kTileRow = 128;

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

/// A thread's registers from here on: what one group of warps gives back another may take.
template <int kCount>
__device__ inline void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// sums = a * b, or += where `adds`: 64 rows, 192 columns, 16 terms; a lane's sums lie as in
/// load_matrices(), eight columns after the other, and in each the rows below 8 before the others.
/// A row of b's tile runs along the sum or, if it is transposed, along the columns.
template <bool kTransposedB>
__device__ inline void multiply(float (&sums)[96], std::uint64_t a, std::uint64_t b, int adds) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, adds, 1, 1, 0, %99;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]),
        "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), "+f"(sums[21]),
        "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]),
        "+f"(sums[27]), "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]), "+f"(sums[36]),
        "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]),
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]),
        "+f"(sums[47]), "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), "+f"(sums[56]),
        "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]),
        "+f"(sums[62]), "+f"(sums[63]), "+f"(sums[64]), "+f"(sums[65]), "+f"(sums[66]),
        "+f"(sums[67]), "+f"(sums[68]), "+f"(sums[69]), "+f"(sums[70]), "+f"(sums[71]),
        "+f"(sums[72]), "+f"(sums[73]), "+f"(sums[74]), "+f"(sums[75]), "+f"(sums[76]),
        "+f"(sums[77]), "+f"(sums[78]), "+f"(sums[79]), "+f"(sums[80]), "+f"(sums[81]),
        "+f"(sums[82]), "+f"(sums[83]), "+f"(sums[84]), "+f"(sums[85]), "+f"(sums[86]),
        "+f"(sums[87]), "+f"(sums[88]), "+f"(sums[89]), "+f"(sums[90]), "+f"(sums[91]),
        "+f"(sums[92]), "+f"(sums[93]), "+f"(sums[94]), "+f"(sums[95])
      : "l"(a), "l"(b), "r"(adds), "n"(kTransposedB ? 1 : 0));
}

}  // namespace lockstep::kernels
