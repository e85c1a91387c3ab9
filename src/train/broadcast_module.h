#pragma once

#include "lockstep/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Gives all ranks the parameters and buffers of rank 0.
void broadcast_module(ProcessGroup& group, const torch::nn::Module& module);

}  // namespace lockstep
