#include "optim/module_tensors.h"

#include <unordered_set>

#include <torch/nn/module.h>

namespace lockstep {
namespace {

template <typename NamedTensors>
std::vector<NamedParameter> each_once(const NamedTensors& tensors) {
  std::vector<NamedParameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

}  // namespace

std::vector<NamedParameter> all_parameters(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

std::vector<NamedParameter> all_buffers(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters = all_parameters(module);
  std::erase_if(parameters, [](const auto& item) { return !item.tensor.requires_grad(); });
  return parameters;
}

std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay) {
  ParamGroup decayed{.parameters = {}, .weight_decay = weight_decay};
  ParamGroup kept{.parameters = {}, .weight_decay = 0.0};
  for (NamedParameter& parameter : named_parameters(module)) {
    auto& group = parameter.tensor.dim() >= 2 ? decayed : kept;
    group.parameters.push_back(std::move(parameter));
  }
  std::vector<ParamGroup> groups;
  for (ParamGroup* group : {&decayed, &kept}) {
    if (!group->parameters.empty()) {
      groups.push_back(std::move(*group));
    }
  }
  return groups;
}

}  // namespace lockstep
