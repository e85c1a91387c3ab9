#include "lockstep/memory_report.h"

#include <algorithm>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"

namespace lockstep {

MemoryByKind measured_memory(const torch::nn::Module& module, const Optimizer& optimizer,
                             const ShardedMemory& sharded, std::int64_t peak_bytes) {
  MemoryByKind memory{.parameters = sharded.most_parameters,
                      .gradients = sharded.most_gradients,
                      .peak = peak_bytes};
  for (const auto& [name, tensor] : optimizer.state().tensors) {
    memory.optimizer += static_cast<std::int64_t>(tensor.nbytes());
  }
  for (const at::Tensor& buffer : module.buffers()) {
    memory.buffers += static_cast<std::int64_t>(buffer.nbytes());
  }
  memory.activations = std::max<std::int64_t>(
      0, peak_bytes - memory.parameters - memory.gradients - memory.optimizer - memory.buffers);
  return memory;
}

}  // namespace lockstep
