#include "train/broadcast_module.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/group_impl.h"
#include "ddp/engine.h"
#include "ddp/module_walk.h"

namespace lockstep {

void broadcast_module(ProcessGroup& group, const torch::nn::Module& module) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& walked : walk_parameters(module, {})) tensors.push_back(walked.tensor.detach());
  for (const auto& walked : walk_buffers(module, {})) tensors.push_back(walked.tensor.detach());
  if (tensors.empty()) return;
  const auto& members = group.impl();
  members->guard->check_usable("broadcast");
  c10d::broadcast_coalesced(members->group, tensors, kBroadcastBytes, /*rank=*/0);
}

}  // namespace lockstep
