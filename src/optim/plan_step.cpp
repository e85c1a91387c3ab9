#include <variant>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/error.h"
#include "optim/fused_step.h"
#include "optim/option_values.h"
#include "optim/tensor_groups.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const NamedParameter& parameter, const std::string& why) {
  throw InvalidArgument(concat("optimizer: parameter ", parameter.name, " ", why));
}

void check_parameter(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda()) {
    refuse(parameter, concat("is on ", tensor.device(), "; fused kernels are for CPU and CUDA"));
  }
  if (!tensor.is_floating_point()) {
    refuse(parameter, concat("is of type ", tensor.dtype(), "; fused kernels take real numbers"));
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(parameter, "is a view with gaps or overlaps; train the tensor that it is a view of");
  }
}

void check_gradient(const NamedParameter& parameter, const at::Tensor& gradient) {
  const at::Tensor& tensor = parameter.tensor;
  if (gradient.is_sparse() || gradient.layout() != at::kStrided) {
    refuse(parameter,
           "has a sparse gradient, which fused optimizers cannot use; make the embedding "
           "with sparse = false");
  }
  if (gradient.sizes() != tensor.sizes()) {
    refuse(parameter, concat("has shape ", tensor.sizes(), ", its gradient ", gradient.sizes()));
  }
  if (gradient.device() != tensor.device()) {
    refuse(parameter, concat("is on ", tensor.device(), ", its gradient on ", gradient.device()));
  }
  if (gradient.scalar_type() != tensor.scalar_type()) {
    refuse(parameter, concat("is of type ", tensor.dtype(), ", its gradient ", gradient.dtype()));
  }
}

void check_arguments(const StepArguments& arguments, std::size_t group_count) {
  const auto check_scalar = [](const char* name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() != 1 || tensor.scalar_type() != at::kFloat) {
      throw InvalidArgument(
          concat("optimizer step: ", name, " must be a float32 tensor of one element"));
    }
  };
  if (arguments.grad_scale.defined()) {
    check_scalar("grad_scale", arguments.grad_scale);
  }
  if (arguments.grad_factor.defined()) {
    check_scalar("grad_factor", arguments.grad_factor);
  }
  if (arguments.found_inf.defined()) {
    check_scalar("found_inf", arguments.found_inf);
  }
  for (const at::Tensor& lr : arguments.lr) {
    check_scalar("lr", lr);
  }
  if (!arguments.lr.empty() && arguments.lr.size() != group_count) {
    throw InvalidArgument(concat("optimizer step: ", arguments.lr.size(), " learning rates for ",
                                 group_count, " parameter groups"));
  }
}

// The same elements in the parameter's own layout.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& gradient) {
  at::Tensor copy = at::empty_strided(parameter.sizes(), parameter.strides(), gradient.options());
  return copy.copy_(gradient);
}

// Python's initial values: counters on the parameter's device, in float32 whatever the parameter
// is.
at::Tensor initial(const std::string& key, const at::Tensor& parameter) {
  if (key == "step") {
    return at::zeros({}, at::TensorOptions(parameter.device()).dtype(at::kFloat));
  }
  // SGD's first step writes its buffers without reading them.
  return key == "momentum_buffer" ? at::empty_like(parameter) : at::zeros_like(parameter);
}

// Up to torch 2.13 the CPU kernel of SGD does not change float16 and bfloat16 parameters that fill
// a vector register (pytorch#191763).
bool kernel_is_wrong(const FusedBatch& batch) {
  const at::Tensor& first = batch.parameters.front();
  return std::holds_alternative<SGDOptions>(*batch.options) && first.is_cpu() &&
         (first.scalar_type() == at::kHalf || first.scalar_type() == at::kBFloat16);
}

// Lets the kernel work on float32 copies. That is also how a right kernel computes: in float32,
// rounded when stored.
void widen(FusedBatch& batch) {
  const auto replace = [&](std::vector<at::Tensor>& tensors, bool copy_back) {
    for (at::Tensor& tensor : tensors) {
      const at::Tensor wide = tensor.detach().to(at::kFloat);
      if (copy_back) {
        batch.copied.push_back({tensor, wide});
      }
      tensor = wide;
    }
  };
  // A gradient that is a copy already goes back through that one: its entry comes later in the
  // list.
  std::vector<FusedBatch::Copied> earlier = std::move(batch.copied);
  batch.copied.clear();
  replace(batch.parameters, true);
  replace(batch.gradients, batch.arguments.grad_scale.defined());
  for (auto& list : batch.state) {
    replace(list, true);
  }
  batch.copied.insert(batch.copied.end(), earlier.begin(), earlier.end());
}

StepArguments arguments_on(const at::Device& device, const StepArguments& arguments,
                           std::size_t group) {
  StepArguments local;
  const auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : at::Tensor();
  };
  local.grad_scale = move(arguments.grad_scale);
  local.grad_factor = move(arguments.grad_factor);
  local.found_inf = move(arguments.found_inf);
  if (!arguments.lr.empty()) {
    local.lr = {move(arguments.lr[group])};
  }
  return local;
}

// The parameters of one group that take part in a step.
struct Participants {
  std::vector<const NamedParameter*> named;
  std::vector<at::Tensor> tensors;
};

class Planner {
 public:
  Planner(const StateByName& state, const StepArguments& arguments)
      : state_(state), arguments_(arguments) {}

  void add_group(const Optimizer::Group& group, std::size_t number) {
    Participants starting;  // without momentum so far
    Participants going_on;
    for (const NamedParameter& parameter : group.parameters) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (!gradient.defined()) {
        continue;
      }
      check_parameter(parameter);
      check_gradient(parameter, gradient);
      auto& participants = is_first(parameter, group.options) ? starting : going_on;
      participants.named.push_back(&parameter);
      participants.tensors.push_back(parameter.tensor);
    }
    add_batches(going_on, group, number, /*first_step=*/false);
    // A first step that is skipped must not leave momentum behind that was never written. Whether
    // it is skipped has to be known here, by the host, but only until the first step that counts.
    const bool skipped = !starting.named.empty() && arguments_.found_inf.defined() &&
                         arguments_.found_inf.item<float>() != 0;
    if (!skipped) {
      add_batches(starting, group, number, /*first_step=*/true);
    }
  }

  StepPlan take() { return std::move(plan_); }

 private:
  // Only SGD's kernel treats the first step apart; Python decides it for a whole group and fails
  // where a parameter gets its first gradient later than others.
  bool is_first(const NamedParameter& parameter, const OptimizerOptions& options) const {
    const auto* sgd = std::get_if<SGDOptions>(&options);
    return sgd && sgd->momentum != 0 && !state_.contains(parameter.name);
  }

  void add_batches(const Participants& participants, const Optimizer::Group& group,
                   std::size_t number, bool first_step) {
    for (const auto& positions : group_by_device_and_dtype(participants.tensors)) {
      FusedBatch batch;
      batch.options = &group.options;
      batch.first_step = first_step;
      batch.parameters = select(participants.tensors, positions);
      batch.arguments = arguments_on(batch.parameters[0].device(), arguments_, number);
      for (const at::Tensor& parameter : batch.parameters) {
        add_gradient(batch, parameter);
      }
      const auto* sgd = std::get_if<SGDOptions>(&group.options);
      if (!sgd || sgd->momentum != 0) {
        for (const std::string& key : state_keys(group.options)) {
          auto& list = batch.state.emplace_back();
          for (const std::size_t position : positions) {
            list.push_back(state_of(*participants.named[position], key));
          }
        }
      }
      if (kernel_is_wrong(batch)) {
        widen(batch);
      }
      plan_.batches.push_back(std::move(batch));
    }
  }

  static void add_gradient(FusedBatch& batch, const at::Tensor& parameter) {
    const at::Tensor gradient = parameter.grad();
    if (gradient.strides() == parameter.strides()) {
      batch.gradients.push_back(gradient);
      return;
    }
    const at::Tensor copy = in_layout_of(parameter, gradient);
    batch.gradients.push_back(copy);
    if (batch.arguments.grad_scale.defined()) {
      batch.copied.push_back({gradient, copy});
    }
  }

  at::Tensor state_of(const NamedParameter& parameter, const std::string& key) {
    const auto existing = state_.find(parameter.name);
    if (existing != state_.end()) {
      if (const auto tensor = existing->second.find(key); tensor != existing->second.end()) {
        return tensor->second;
      }
    }
    return plan_.created[parameter.name][key] = initial(key, parameter.tensor);
  }

  const StateByName& state_;
  const StepArguments& arguments_;
  StepPlan plan_;
};

}  // namespace

StepPlan plan_step(const std::vector<Optimizer::Group>& groups, const StateByName& state,
                   const StepArguments& arguments) {
  check_arguments(arguments, groups.size());
  Planner planner(state, arguments);
  for (std::size_t number = 0; number < groups.size(); ++number) {
    planner.add_group(groups[number], number);
  }
  return planner.take();
}

}  // namespace lockstep
