#pragma once

#include <vector>

#include "lockstep/optimizer.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// The tensors of a module, each once, under the name it was first registered with.
std::vector<NamedParameter> all_parameters(const torch::nn::Module& module);
std::vector<NamedParameter> all_buffers(const torch::nn::Module& module);

}  // namespace lockstep
