#include <algorithm>
#include <set>
#include <string_view>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"
#include "optim/fused_step.h"
#include "optim/option_values.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::string_view kAllKeys[] = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq",
                                         "momentum_buffer"};

json names_of(const std::vector<NamedParameter>& parameters) {
  json names = json::array();
  for (const NamedParameter& parameter : parameters) {
    names.push_back(parameter.name);
  }
  return names;
}

const json& member(const json& values, const char* name) {
  const auto found = values.find(name);
  if (found == values.end()) {
    throw InvalidArgument(concat("optimizer state: there is no \"", name, "\" in it"));
  }
  return *found;
}

// The first name that one list has and the other lacks, for the message; the order may differ.
void check_names(const json& saved, const std::vector<NamedParameter>& parameters,
                 std::size_t group) {
  std::set<std::string> missing;
  for (const NamedParameter& parameter : parameters) {
    missing.insert(parameter.name);
  }
  for (const json& name : saved) {
    if (!name.is_string() || missing.erase(name.get<std::string>()) == 0) {
      throw InvalidArgument(concat("optimizer state: its group ", group, " has ", name.dump(),
                                   ", which is not in the same group here"));
    }
  }
  if (!missing.empty()) {
    throw InvalidArgument(
        concat("optimizer state: its group ", group, " lacks parameter ", *missing.begin()));
  }
}

// A copy as the kernels need it: beside the parameter, in its layout and dtype. Counters stay
// float32.
at::Tensor adapted(const NamedParameter& parameter, const std::string& key,
                   const at::Tensor& saved) {
  const at::Tensor& tensor = parameter.tensor;
  const bool is_counter = key == "step";
  if (!saved.defined() || (is_counter ? saved.numel() != 1 : saved.sizes() != tensor.sizes())) {
    throw InvalidArgument(concat("optimizer state: ", parameter.name, ".", key, " has shape ",
                                 saved.defined() ? concat(saved.sizes()) : "none", ", needed is ",
                                 is_counter ? "one element" : concat(tensor.sizes())));
  }
  at::Tensor copy = is_counter
                        ? at::empty({}, tensor.options().dtype(at::kFloat).requires_grad(false))
                        : at::empty_strided(tensor.sizes(), tensor.strides(),
                                            tensor.options().requires_grad(false));
  return copy.copy_(is_counter ? saved.reshape({}) : saved);
}

// `own` is what the optimizer has now. State that is that already, as after a transfer into it, is
// not copied.
ParameterState adapted_state(const NamedParameter& parameter, const OptimizerOptions& options,
                             const State& state, const StateByName& own) {
  ParameterState tensors;
  const auto keys = state_keys(options);
  const auto current = own.find(parameter.name);
  for (const std::string& key : keys) {
    const auto found = state.tensors.find(parameter.name + "." + key);
    if (found == state.tensors.end()) continue;
    const bool is_own = current != own.end() && current->second.contains(key) &&
                        current->second.at(key).is_same(found->second);
    tensors[key] = is_own ? found->second : adapted(parameter, key, found->second);
  }
  // Adam's tensors only make sense together.
  if (!tensors.empty() && tensors.size() != keys.size()) {
    const auto missing =
        std::ranges::find_if(keys, [&](const std::string& key) { return !tensors.contains(key); });
    throw InvalidArgument(
        concat("optimizer state: ", parameter.name, ".", *missing, " is missing"));
  }
  return tensors;
}

// Python has it only once a scheduler has been made.
double initial_lr_of(const json& saved, const OptimizerOptions& options) {
  const auto found = saved.find("initial_lr");
  if (found != saved.end() && found->is_number()) {
    return found->get<double>();
  }
  return std::visit([](const auto& values) { return values.lr; }, options);
}

void check_no_strangers(const State& state, const StateByName& adopted) {
  for (const auto& [full_name, tensor] : state.tensors) {
    const std::size_t dot = full_name.rfind('.');
    const std::string name = full_name.substr(0, dot);
    const auto found = dot == std::string::npos ? adopted.end() : adopted.find(name);
    if (found == adopted.end() || !found->second.contains(full_name.substr(dot + 1))) {
      throw InvalidArgument(concat("optimizer state: nothing here takes its tensor ", full_name));
    }
  }
}

}  // namespace

State Optimizer::state() const {
  State result;
  for (const auto& [name, tensors] : state_) {
    for (const auto& [key, tensor] : tensors) {
      result.tensors[name + "." + key] = tensor;
    }
  }
  json groups = json::array();
  for (const Group& group : groups_) {
    json values = options_to_json(group.options);
    values["initial_lr"] = group.initial_lr;
    values["params"] = names_of(group.parameters);
    groups.push_back(std::move(values));
  }
  result.values["type"] = type();
  result.values["groups"] = std::move(groups);
  return result;
}

void Optimizer::load_state(const State& state) {
  const at::NoGradGuard no_grad;
  const json& saved_type = member(state.values, "type");
  if (saved_type != type()) {
    throw InvalidArgument(
        concat("optimizer state: it is of ", saved_type.dump(), ", the optimizer is ", type()));
  }
  const json& saved_groups = member(state.values, "groups");
  if (saved_groups.size() != groups_.size()) {
    throw InvalidArgument(concat("optimizer state: it has ", saved_groups.size(),
                                 " parameter groups, the optimizer ", groups_.size()));
  }
  std::vector<Group> groups = groups_;
  StateByName tensors;
  for (std::size_t number = 0; number < groups.size(); ++number) {
    Group& group = groups[number];
    const json& saved = saved_groups[number];
    check_names(member(saved, "params"), group.parameters, number);
    group.options = options_from_json(saved, group.options);
    group.initial_lr = initial_lr_of(saved, group.options);
    for (const NamedParameter& parameter : group.parameters) {
      ParameterState adopted = adapted_state(parameter, group.options, state, state_);
      if (!adopted.empty()) {
        tensors.emplace(parameter.name, std::move(adopted));
      }
    }
  }
  check_no_strangers(state, tensors);
  groups_ = std::move(groups);
  state_ = std::move(tensors);
}

PythonOptimizerState to_python(const State& state) {
  PythonOptimizerState python;
  const json& type = member(state.values, "type");
  std::int64_t number = 0;
  for (const json& group : member(state.values, "groups")) {
    json values = group;
    json numbers = json::array();
    for (const json& name : member(group, "params")) {
      if (!name.is_string()) {
        throw InvalidArgument(
            concat("optimizer state: ", name.dump(), " is not the name of a parameter"));
      }
      for (const std::string_view key : kAllKeys) {
        const auto tensor =
            state.tensors.find(concat(name.get_ref<const std::string&>(), ".", key));
        if (tensor != state.tensors.end()) {
          python.state[number][std::string(key)] = tensor->second;
        }
      }
      numbers.push_back(number++);
    }
    // What Python's constructors put there besides; load_state_dict() takes a group as it is.
    values["foreach"] = nullptr;
    values["differentiable"] = false;
    values["fused"] = true;
    if (type != "SGD") {
      values["capturable"] = false;
      values["decoupled_weight_decay"] = type == "AdamW";
    }
    values["params"] = std::move(numbers);
    python.param_groups.push_back(std::move(values));
  }
  return python;
}

State from_python(const PythonOptimizerState& python, const Optimizer& optimizer) {
  const auto parameters = optimizer.parameters();
  State result;
  result.values["type"] = optimizer.type();
  json groups = json::array();
  const auto name_of = [&](std::int64_t number) -> const std::string& {
    if (number < 0 || number >= static_cast<std::int64_t>(parameters.size())) {
      throw InvalidArgument(concat("optimizer state from Python: it has a parameter ", number,
                                   ", the optimizer has ", parameters.size(), " parameters"));
    }
    return parameters[number].name;
  };
  for (const json& group : python.param_groups) {
    json values = group;
    json names = json::array();
    for (const json& number : member(group, "params")) {
      if (!number.is_number_integer()) {
        throw InvalidArgument(concat("optimizer state from Python: ", number.dump(),
                                     " is not the number of a parameter"));
      }
      names.push_back(name_of(number.get<std::int64_t>()));
    }
    values["params"] = std::move(names);
    groups.push_back(std::move(values));
  }
  result.values["groups"] = std::move(groups);
  for (const auto& [number, tensors] : python.state) {
    for (const auto& [key, tensor] : tensors) {
      if (tensor.defined()) {  // None: an SGD that has not stepped yet
        result.tensors[concat(name_of(number), ".", key)] = tensor;
      }
    }
  }
  return result;
}

}  // namespace lockstep
