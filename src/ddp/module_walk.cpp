#include "ddp/module_walk.h"

#include <unordered_set>

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/modules/embedding.h>

namespace lockstep {
namespace {

bool has_sparse_gradient(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

template <typename TensorsOf>
std::vector<WalkedTensor> walk(const torch::nn::Module& root, const std::set<std::string>& ignored,
                               TensorsOf tensors_of) {
  std::vector<WalkedTensor> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto visit = [&](const std::string& path, const torch::nn::Module& module) {
    const bool sparse = has_sparse_gradient(module);
    for (const auto& item : tensors_of(module)) {
      const std::string name = path.empty() ? item.key() : path + "." + item.key();
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || ignored.contains(name)) continue;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      found.push_back({.name = name, .tensor = tensor, .sparse_gradient = sparse});
    }
  };
  visit("", root);
  for (const auto& child : root.named_modules("", /*include_self=*/false)) {
    visit(child.key(), *child.value());
  }
  return found;
}

}  // namespace

std::vector<WalkedTensor> walk_parameters(const torch::nn::Module& module,
                                          const std::set<std::string>& ignored) {
  return walk(module, ignored, [](const auto& each) { return each.named_parameters(false); });
}

std::vector<WalkedTensor> walk_buffers(const torch::nn::Module& module,
                                       const std::set<std::string>& ignored) {
  return walk(module, ignored, [](const auto& each) { return each.named_buffers(false); });
}

std::string module_name(const torch::nn::Module& module) {
  return module.name();
}

}  // namespace lockstep
