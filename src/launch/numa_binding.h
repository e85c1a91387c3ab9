#pragma once

#include <vector>

#include "launch/cpu_topology.h"
#include "launch/gpu.h"
#include "launch/options.h"

namespace lockstep {

/// The processors of each local rank under --numa-binding, which are torchrun's where there are
/// GPUs: GPU i belongs to rank i, and the rank gets
///
/// - node: all processors of the NUMA node that its GPU is attached to;
/// - socket: those of all nodes in the same socket;
/// - exclusive: its share of the node's cores, divided among all GPUs of that node, the lower ones
///   getting one more where it does not come out even;
/// - core-complex: one group of cores behind a common last cache, the largest first, a different
///   one for each GPU of the node while there are enough.
///
/// What torchrun has no answer for: without GPUs, ranks take the NUMA nodes in turn; with more
/// ranks than GPUs, rank r shares GPU r modulo their number.
///
/// Threads are bound and memory is not, as in torchrun: the kernel takes new memory from the node
/// on which the thread runs, and only goes elsewhere when that is full.
///
/// Throws InvalidArgument when a rank would be left without a processor, SystemError when sysfs
/// does not say.
std::vector<CpuSet> bind_ranks(NumaBinding binding, int local_world_size,
                               const std::vector<Gpu>& gpus, const CpuTopology& topology);

/// The option's word: "core-complex".
const char* to_string(NumaBinding binding);

}  // namespace lockstep
