#pragma once

// src/kernels/hopper.cuh on a CPU: the same names, for the same kernels (launch.h).

#include "tests/kernels/on_cpu/cuda_words.h"

#include <cuda.h>

#include "kernels/approximate.cuh"
#include "kernels/device.cuh"
#include "kernels/tile_layout.cuh"
#include "tests/kernels/on_cpu/barriers.h"
#include "tests/kernels/on_cpu/copies.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/products.h"
#include "tests/kernels/on_cpu/warps.h"

namespace lockstep::kernels {

template <class T>
T& shared_memory() {
  on_cpu::Block& block = on_cpu::machine().block();
  if (sizeof(T) > block.bytes()) on_cpu::fail("shared_memory() of more than was asked for");
  return *reinterpret_cast<T*>(block.memory());
}
inline unsigned shared_address(const void* pointer) {
  return on_cpu::machine().block().address_of(pointer);
}

inline unsigned rank_in_cluster() {
  return on_cpu::machine().block().rank();
}
inline void sync_cluster() {
  on_cpu::sync_cluster();
}
inline void sync_threads(int barrier, int threads) {
  on_cpu::sync_threads("sync_threads()", static_cast<unsigned>(barrier),
                       static_cast<unsigned>(threads));
}
inline void arrive_threads(int barrier, int threads) {
  on_cpu::arrive_threads(static_cast<unsigned>(barrier), static_cast<unsigned>(threads));
}

struct Barrier {
  std::uint64_t state;

  void init(int arrivals) { on_cpu::init_barrier(state, arrivals); }
  void arrive_and_expect(int bytes) { on_cpu::arrive(state, rank_in_cluster(), bytes); }
  void arrive() { on_cpu::arrive(state, rank_in_cluster(), 0); }
  void arrive_at(unsigned rank) { on_cpu::arrive(state, rank, 0); }
  void wait(unsigned parity) { on_cpu::wait(state, parity); }
};
inline void publish_barriers() {
  on_cpu::publish_barriers();
}

inline void load_tile(void* to, const CUtensorMap& from, int column, int row, Barrier& barrier) {
  on_cpu::load_tile(1u << rank_in_cluster(), to, from, column, row, barrier.state);
}
inline constexpr std::uint64_t kEvictNormal = 0, kEvictFirst = 1;
inline void load_tile_as(std::uint64_t, void* to, const CUtensorMap& from, int column, int row,
                         Barrier& barrier) {
  load_tile(to, from, column, row, barrier);
}
inline void load_tile_to(unsigned short blocks, void* to, const CUtensorMap& from, int column,
                         int row, Barrier& barrier) {
  on_cpu::load_tile(blocks, to, from, column, row, barrier.state);
}
inline void load_bytes(void* to, const void* from, int bytes, Barrier& barrier) {
  on_cpu::load_bytes(to, from, bytes, barrier.state);
}
inline void publish_to_copies() {
  on_cpu::publish_to_copies();
}
inline void store_tile(const CUtensorMap& to, int column, int row, const void* from) {
  on_cpu::store_tile(to, column, row, from);
}
inline void store_tile_as(std::uint64_t, const CUtensorMap& to, int column, int row,
                          const void* from) {
  store_tile(to, column, row, from);
}
inline void end_store_group() {
  on_cpu::end_store_group();
}
template <int kGroups>
void wait_for_reads() {
  on_cpu::wait_for_reads(kGroups);
}

inline void load_matrices(unsigned address, unsigned (&pairs)[4]) {
  on_cpu::load_matrices(address, pairs);
}
inline void store_matrices(unsigned address, const unsigned (&pairs)[4]) {
  on_cpu::store_matrices(address, pairs);
}

inline void begin_products() {
  on_cpu::begin_products();
}
inline void end_product_group() {
  on_cpu::end_product_group();
}
template <int kGroups>
void wait_for_products() {
  on_cpu::wait_for_products(kGroups);
}

inline void write_floats(float* at, float4 values) {
  *reinterpret_cast<float4*>(at) = values;
}
inline float4 read_floats(const float* at) {
  return *reinterpret_cast<const float4*>(at);
}
inline void add_floats(float* at, float4 values) {
  at[0] += values.x, at[1] += values.y, at[2] += values.z, at[3] += values.w;
}

template <int kCount>
void give_registers_back() {}
template <int kCount>
void take_registers() {}

}  // namespace lockstep::kernels
