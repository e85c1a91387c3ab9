#pragma once

// Copies between memory and shared memory, which the device does on its own.

#include <cuda.h>

#include <cstdint>

namespace lockstep::kernels::on_cpu {

/// Into the blocks of the cluster that have a bit in `blocks`.
void load_tile(unsigned blocks, void* to, const CUtensorMap& from, int column, int row,
               const std::uint64_t& barrier);
void load_bytes(void* to, const void* from, int bytes, const std::uint64_t& barrier);

void store_tile(const CUtensorMap& to, int column, int row, const void* from);
void end_store_group();
void wait_for_reads(unsigned groups);
void publish_to_copies();

}  // namespace lockstep::kernels::on_cpu
