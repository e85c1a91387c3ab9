#pragma once

// Barriers and what else keeps threads in step.

#include "tests/kernels/on_cpu/block.h"

namespace lockstep::kernels::on_cpu {

void sync_threads(const char* call, unsigned number, unsigned threads);
void arrive_threads(unsigned number, unsigned threads);
void sync_cluster();

// By the address of a barrier in the block's shared memory; `state` is what lies there.
void init_barrier(std::uint64_t& state, int arrivals);
void arrive(std::uint64_t& state, unsigned rank, int bytes);
void wait(std::uint64_t& state, unsigned parity);
void publish_barriers();

/// The state of one that was initialized, in a block of the cluster. Fails, naming the call, where
/// it was not.
BarrierState& barrier_at(Block& block, unsigned address, const char* call);
/// A load that was started tells a barrier of its bytes when it is complete.
void expect_load(Block& block, unsigned address, unsigned bytes, const char* call);
void complete_load(Block& block, unsigned address, unsigned bytes, const char* call);

}  // namespace lockstep::kernels::on_cpu
