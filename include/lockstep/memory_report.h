#pragma once

#include <cstdint>

#include "lockstep/memory_plan.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class Optimizer;
struct ShardedMemory;

/// What a training run has taken by now, in the terms of predict_memory(): what
/// ShardedDataParallel counts, the optimizer's state and the module's buffers. `peak_bytes` is what
/// the allocator says was the most at once (lockstep/cpu_memory.h, or the device's own); all of it
/// that has no other name is called activations.
MemoryByKind measured_memory(const torch::nn::Module& module, const Optimizer& optimizer,
                             const ShardedMemory& sharded, std::int64_t peak_bytes);

}  // namespace lockstep
