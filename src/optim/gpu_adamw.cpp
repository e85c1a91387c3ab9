#include "optim/gpu_adamw.h"

#include <algorithm>
#include <cstdint>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/adamw.h"
#include "kernels/device_code.h"
#include "optim/weight_copies.h"

namespace lockstep {
namespace {

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

bool fits(const FusedBatch& batch, std::size_t i) {
  const at::Tensor* all[] = {&batch.parameters[i], &batch.gradients[i], &batch.state[1][i],
                             &batch.state[2][i]};
  // plan_step() has seen to it that they lie in memory alike.
  return std::ranges::all_of(all, [](const at::Tensor* tensor) {
    return tensor->is_cuda() && tensor->scalar_type() == at::kFloat && is_aligned(*tensor);
  });
}

const float* scalar(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool is_float_on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device && tensor.scalar_type() == at::kFloat;
}

}  // namespace

bool step_on_gpu(const FusedBatch& batch, const AdamWOptions& options) {
  const StepArguments& arguments = batch.arguments;
  if (options.amsgrad || options.maximize || arguments.grad_scale.defined()) return false;
  const c10::Device device = batch.parameters.front().device();
  const at::Tensor rate = arguments.lr.empty() ? at::Tensor() : arguments.lr.front();
  if (!device.is_cuda() || (rate.defined() && !is_float_on(rate, device))) return false;
  for (const at::Tensor& number : {arguments.found_inf, arguments.grad_factor}) {
    if (number.defined() && !is_float_on(number, device)) return false;
  }
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    if (!fits(batch, i)) return false;
  }
  const c10::cuda::CUDAGuard guard(device);
  if (!kernels::has_device_code()) return false;

  std::vector<kernels::AdamWPart> parts;
  std::vector<std::shared_ptr<WeightCopy>> copies;
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    const at::Tensor& weight = batch.parameters[i];
    std::shared_ptr<WeightCopy> copy = kept_copy_of(weight);
    // A step that is skipped writes nothing, so that a copy is as current as it was before.
    if (copy && arguments.found_inf.defined() && !copy->is_current()) copy.reset();
    parts.push_back({.weights = weight.data_ptr<float>(),
                     .first_moments = batch.state[1][i].data_ptr<float>(),
                     .second_moments = batch.state[2][i].data_ptr<float>(),
                     .gradients = batch.gradients[i].const_data_ptr<float>(),
                     .step = batch.state[0][i].const_data_ptr<float>(),
                     .out = copy ? static_cast<kernels::Bf16*>(copy->copy.data_ptr()) : nullptr,
                     .count = weight.numel()});
    copies.push_back(std::move(copy));
  }
  kernels::adamw(parts.data(), static_cast<int>(parts.size()),
                 {.learning_rate = options.lr,
                  .learning_rate_on_device = scalar(rate),
                  .beta1 = options.betas[0],
                  .beta2 = options.betas[1],
                  .epsilon = options.eps,
                  .weight_decay = options.weight_decay,
                  .gradient_scale = scalar(arguments.grad_factor),
                  .found_inf = scalar(arguments.found_inf)},
                 c10::cuda::getCurrentCUDAStream());
  for (std::size_t i = 0; i < batch.parameters.size(); ++i) {
    for (const at::Tensor& changed : {batch.parameters[i], batch.state[1][i], batch.state[2][i]}) {
      changed.unsafeGetTensorImpl()->bump_version();
    }
    if (!copies[i]) continue;
    copies[i]->mark_current();
    copies[i]->is_written = true;
  }
  return true;
}

}  // namespace lockstep
