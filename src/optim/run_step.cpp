#include <optional>
#include <variant>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include "optim/fused_step.h"
#include "optim/gpu_adamw.h"
#include "optim/option_values.h"

namespace lockstep {
namespace {

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The kernels take the learning rate as a number or as a tensor: calls with the one that is given.
template <typename Kernel>
void with_lr(const FusedBatch& batch, double lr, Kernel&& kernel) {
  if (batch.arguments.lr.empty()) {
    kernel(lr);
  } else {
    kernel(batch.arguments.lr.front());
  }
}

// For kernels that know of no factor.
void multiply_gradients(const FusedBatch& batch) {
  const at::Tensor& factor = batch.arguments.grad_factor;
  if (factor.defined()) at::_foreach_mul_(batch.gradients, factor);
}

void run(const FusedBatch& batch, const SGDOptions& options) {
  const auto& arguments = batch.arguments;
  multiply_gradients(batch);
  const auto buffers = batch.state.empty() ? at::TensorList() : at::TensorList(batch.state[0]);
  with_lr(batch, options.lr, [&](const auto& lr) {
    at::_fused_sgd_(batch.parameters, batch.gradients, buffers, options.weight_decay,
                    options.momentum, lr, options.dampening, options.nesterov, options.maximize,
                    batch.first_step, optional(arguments.grad_scale),
                    optional(arguments.found_inf));
  });
}

bool done_by_own_kernel(const FusedBatch& batch, const AdamWOptions& options) {
  return step_on_gpu(batch, options);
}
bool done_by_own_kernel(const FusedBatch&, const AdamOptions&) {
  return false;
}

template <typename Options>
void run_in_aten(const FusedBatch& batch, const Options& options) {
  const auto& arguments = batch.arguments;
  multiply_gradients(batch);
  const auto& steps = batch.state[0];
  const auto maxima = options.amsgrad ? at::TensorList(batch.state[3]) : at::TensorList();
  with_lr(batch, options.lr, [&](const auto& lr) {
    const auto call = [&](auto kernel) {
      kernel(batch.parameters, batch.gradients, batch.state[1], batch.state[2], maxima, steps, lr,
             options.betas[0], options.betas[1], options.weight_decay, options.eps, options.amsgrad,
             options.maximize, optional(arguments.grad_scale), optional(arguments.found_inf));
    };
    if constexpr (std::is_same_v<Options, AdamWOptions>) {
      call([](const auto&... values) { at::_fused_adamw_(values...); });
    } else {
      call([](const auto&... values) { at::_fused_adam_(values...); });
    }
  });
}

template <typename Options>
void run(const FusedBatch& batch, const Options& options) {
  const auto& steps = batch.state[0];
  at::_foreach_add_(steps, 1);
  if (!done_by_own_kernel(batch, options)) run_in_aten(batch, options);
  const at::Tensor& skipped = batch.arguments.found_inf;
  if (skipped.defined()) {
    at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), skipped));
  }
}

}  // namespace

void run_step(const StepPlan& plan) {
  for (const FusedBatch& batch : plan.batches) {
    std::visit([&](const auto& options) { run(batch, options); }, *batch.options);
    for (const auto& [original, copy] : batch.copied) {
      original.copy_(copy);
    }
  }
}

}  // namespace lockstep
