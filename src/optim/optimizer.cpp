#include "lockstep/optimizer.h"

#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include "lockstep/error.h"
#include "optim/fused_step.h"
#include "optim/option_values.h"

namespace lockstep {
namespace {

std::vector<ParamGroup> one_group(std::vector<NamedParameter> parameters) {
  std::vector<ParamGroup> groups(1);
  groups[0].parameters = std::move(parameters);
  return groups;
}

// Names are the keys of snapshots, and a parameter in two groups would be changed twice.
void check_parameters(const std::vector<ParamGroup>& groups) {
  std::unordered_set<std::string> names;
  std::unordered_set<const c10::TensorImpl*> tensors;
  for (const ParamGroup& group : groups) {
    for (const NamedParameter& parameter : group.parameters) {
      if (!parameter.tensor.defined() || !parameter.tensor.is_leaf()) {
        throw InvalidArgument(concat("optimizer: ", parameter.name,
                                     " is not a parameter but undefined or computed from others"));
      }
      if (!names.insert(parameter.name).second) {
        throw InvalidArgument(concat("optimizer: two parameters have the name ", parameter.name));
      }
      if (!tensors.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
        throw InvalidArgument(
            concat("optimizer: parameter ", parameter.name, " is given a second time"));
      }
    }
  }
  // Groups may be empty, all of them: a rank may have no part of a small sharded model.
  if (groups.empty()) {
    throw InvalidArgument("optimizer: there are no groups of parameters to train");
  }
}

// A gradient of a gradient (create_graph) is cut from its graph without touching its memory.
void detach_gradient(at::Tensor& gradient) {
  if (gradient.requires_grad()) {
    gradient = gradient.detach();
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<ParamGroup> groups, const OptimizerOptions& defaults) {
  check_parameters(groups);
  for (ParamGroup& group : groups) {
    Group live{.parameters = {}, .options = options_of_group(defaults, group)};
    live.parameters = std::move(group.parameters);
    live.initial_lr = std::visit([](const auto& options) { return options.lr; }, live.options);
    groups_.push_back(std::move(live));
  }
}

Optimizer::~Optimizer() = default;

std::string Optimizer::type() const {
  return optimizer_type(groups_.front().options);
}

void Optimizer::step(const StepArguments& arguments) {
  const at::NoGradGuard no_grad;
  StepPlan plan = plan_step(groups_, state_, arguments);
  for (auto& [name, tensors] : plan.created) {
    state_[name].merge(tensors);
  }
  run_step(plan);
}

void Optimizer::zero_grad(const ZeroGradOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Group& group : groups_) {
    for (const NamedParameter& parameter : group.parameters) {
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (!gradient.defined()) {
        continue;
      }
      if (options.set_to_none) {
        gradient.reset();
        continue;
      }
      detach_gradient(gradient);
      gradients.push_back(gradient);
    }
  }
  if (!gradients.empty()) {
    at::_foreach_zero_(gradients);
  }
}

std::vector<NamedParameter> Optimizer::parameters() const {
  std::vector<NamedParameter> all;
  for (const Group& group : groups_) {
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  }
  return all;
}

const Optimizer::Group& Optimizer::group_at(std::size_t group) const {
  if (group >= groups_.size()) {
    throw InvalidArgument(
        concat("optimizer: there is no parameter group ", group, "; there are ", groups_.size()));
  }
  return groups_[group];
}

double Optimizer::lr(std::size_t group) const {
  return std::visit([](const auto& options) { return options.lr; }, group_at(group).options);
}

void Optimizer::set_lr(std::size_t group, double value) {
  OptimizerOptions options = group_at(group).options;
  std::visit([&](auto& values) { values.lr = value; }, options);
  check_options(options);
  groups_[group].options = options;
}

double Optimizer::momentum(std::size_t group) const {
  return std::visit(
      [](const auto& options) {
        if constexpr (is_adam<std::decay_t<decltype(options)>>) {
          return options.betas[0];
        } else {
          return options.momentum;
        }
      },
      group_at(group).options);
}

void Optimizer::set_momentum(std::size_t group, double value) {
  OptimizerOptions options = group_at(group).options;
  std::visit(
      [&](auto& values) {
        if constexpr (is_adam<std::decay_t<decltype(values)>>) {
          values.betas[0] = value;
        } else {
          values.momentum = value;
        }
      },
      options);
  check_options(options);
  groups_[group].options = options;
}

SGD::SGD(std::vector<ParamGroup> groups, const SGDOptions& options)
    : Optimizer(std::move(groups), options) {}
SGD::SGD(std::vector<NamedParameter> parameters, const SGDOptions& options)
    : SGD(one_group(std::move(parameters)), options) {}

Adam::Adam(std::vector<ParamGroup> groups, const AdamOptions& options)
    : Optimizer(std::move(groups), options) {}
Adam::Adam(std::vector<NamedParameter> parameters, const AdamOptions& options)
    : Adam(one_group(std::move(parameters)), options) {}

AdamW::AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options)
    : Optimizer(std::move(groups), options) {}
AdamW::AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options)
    : AdamW(one_group(std::move(parameters)), options) {}

std::unique_ptr<Optimizer> make_optimizer(std::vector<ParamGroup> groups,
                                          const OptimizerOptions& options) {
  return std::visit(
      [&](const auto& values) -> std::unique_ptr<Optimizer> {
        using Options = std::decay_t<decltype(values)>;
        if constexpr (std::is_same_v<Options, SGDOptions>) {
          return std::make_unique<SGD>(std::move(groups), values);
        } else if constexpr (std::is_same_v<Options, AdamOptions>) {
          return std::make_unique<Adam>(std::move(groups), values);
        } else {
          return std::make_unique<AdamW>(std::move(groups), values);
        }
      },
      options);
}

std::unique_ptr<Optimizer> make_optimizer(std::vector<NamedParameter> parameters,
                                          const OptimizerOptions& options) {
  return make_optimizer(one_group(std::move(parameters)), options);
}

}  // namespace lockstep
