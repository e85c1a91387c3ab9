#include "lockstep/module_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  // A layer without bias has one that is undefined.
  std::erase_if(tensors, [](const auto& item) { return !item.second.defined(); });
  return tensors;
}

bool is_same_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.const_data_ptr() == other.const_data_ptr() &&
         one.scalar_type() == other.scalar_type() && one.strides() == other.strides();
}

void erase_all(std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    if (at == 0 || text[at - 1] == '.') {
      text.erase(at, part.size());
    } else {
      at += part.size();
    }
  }
}

// The module's own name for a name in a state: as it is where the module has it, otherwise without
// what wrappers add. torch.compile can wrap parts of a model, DistributedDataParallel wraps the
// whole.
std::string own_name(std::string name, const std::map<std::string, at::Tensor>& own) {
  if (own.contains(name)) return name;
  erase_all(name, "_orig_mod.");
  while (!own.contains(name) && name.starts_with("module.")) name.erase(0, 7);
  return name;
}

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMost; ++i) {
    text += concat(i == 0 ? "" : ", ", names[i]);
  }
  return names.size() > kMost ? concat(text, " and ", names.size() - kMost, " more") : text;
}

// Names of `own` that nothing in `given` fills, also not through another name of the same tensor.
std::vector<std::string> find_missing(const std::map<std::string, at::Tensor>& own,
                                      const std::map<std::string, at::Tensor>& given) {
  std::set<const c10::TensorImpl*> filled;
  for (const auto& [name, tensor] : given) filled.insert(own.at(name).unsafeGetTensorImpl());
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : own) {
    if (!filled.contains(tensor.unsafeGetTensorImpl())) missing.push_back(name);
  }
  return missing;
}

}  // namespace

State module_state(const torch::nn::Module& module) {
  State state;
  for (auto& [name, tensor] : tensors_of(module)) state.tensors[name] = tensor.detach();
  return state;
}

void load_module_state(torch::nn::Module& module, const State& state) {
  const std::map<std::string, at::Tensor> own = tensors_of(module);
  std::map<std::string, at::Tensor> given;
  std::vector<std::string> unexpected, mismatched;
  for (const auto& [name, tensor] : state.tensors) {
    const auto target = own.find(own_name(name, own));
    if (target == own.end()) {
      unexpected.push_back(name);
    } else if (target->second.sizes() != tensor.sizes()) {
      mismatched.push_back(
          concat(name, " is ", tensor.sizes(), " instead of ", target->second.sizes()));
    } else if (!given.emplace(target->first, tensor).second) {
      unexpected.push_back(concat(name, " (a second time)"));
    }
  }
  std::vector<std::string> missing = find_missing(own, given);
  std::erase_if(missing, [&](const std::string& name) {  // told as a mismatch
    return std::any_of(state.tensors.begin(), state.tensors.end(),
                       [&](const auto& item) { return own_name(item.first, own) == name; });
  });
  std::string problems;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) problems += concat(problems.empty() ? "" : "; ", what, ": ", list(names));
  };
  add("missing", missing);
  add("unexpected", unexpected);
  add("of another shape", mismatched);
  if (!problems.empty()) {
    throw InvalidArgument(concat("the state does not fit ", module.name(), ": ", problems));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : given) {
    if (!is_same_memory(own.at(name), tensor)) own.at(name).copy_(tensor);
  }
}

}  // namespace lockstep
