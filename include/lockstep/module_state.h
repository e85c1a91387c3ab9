#pragma once

#include "lockstep/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Parameters and buffers under the module's own names, which are those of Python's state_dict()
/// for the same modules. Tensors are shared with the module. A tensor with two names (tied weights)
/// is there under both.
State module_state(const torch::nn::Module& module);

/// Copies into the module's tensors, in place. Names may have the prefixes `module.` (of Python's
/// DistributedDataParallel) and `_orig_mod.` (of torch.compile). Of tied weights one name is
/// enough. Values are converted to the module's types and devices.
///
/// Throws InvalidArgument, with everything that is missing, unexpected or of another shape in one
/// line, before anything is changed.
void load_module_state(torch::nn::Module& module, const State& state);

}  // namespace lockstep
