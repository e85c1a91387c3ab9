#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

struct WalkedTensor {
  std::string name;
  at::Tensor tensor;
  bool sparse_gradient = false;
};

/// All parameters in the order in which Python's DistributedDataParallel finds them: modules depth
/// first, in the order of registration. A tensor that is registered twice (tied weights) counts
/// where it comes first. Names in `ignored` are left out.
std::vector<WalkedTensor> walk_parameters(const torch::nn::Module& module,
                                          const std::set<std::string>& ignored);

std::vector<WalkedTensor> walk_buffers(const torch::nn::Module& module,
                                       const std::set<std::string>& ignored);

std::string module_name(const torch::nn::Module& module);

}  // namespace lockstep
