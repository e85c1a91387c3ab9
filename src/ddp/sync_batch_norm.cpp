#include "lockstep/sync_batch_norm.h"

#include <ostream>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include "ddp/batch_statistics.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Carries the group from forward to backward.
struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(const ProcessGroup& value) : group(value) {}
  ProcessGroup group;
};

// The kernels read plain or channels-last memory.
at::Tensor dense(const at::Tensor& tensor) {
  const bool channels_last =
      (tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
      (tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d));
  return channels_last ? tensor : tensor.contiguous();
}

struct Normalization : torch::autograd::Function<Normalization> {
  // Function wants what may be undefined as optional.
  using OptionalTensor = std::optional<at::Tensor>;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& given,
                            const OptionalTensor& given_weight, const OptionalTensor& given_bias,
                            const RunningStatistics& running, double eps,
                            const ProcessGroup& given_group) {
    const at::Tensor weight = given_weight.value_or(at::Tensor());
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    ProcessGroup group = given_group;
    const at::Tensor input = dense(given);
    const BatchStatistics statistics = gather_statistics(group, input, eps, running);
    context->save_for_backward(
        {input, weight, statistics.mean, statistics.invstd, statistics.counts});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    return normalize(input, weight, bias, statistics, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const BatchStatistics statistics{saved[2], saved[3], saved[4]};
    auto& group = static_cast<GroupHolder&>(*context->saved_data["group"].toCapsule()).group;
    const at::Tensor grad_output = dense(gradients[0]);
    const GradientSums sums = local_gradient_sums(grad_output, input, weight, statistics);
    variable_list result(6);
    if (context->needs_input_grad(0)) {
      result[0] = input_gradient(group, grad_output, input, weight, statistics, sums);
    }
    if (weight.defined()) {
      result[1] = sums.grad_weight.to(weight.scalar_type());
      result[2] = sums.grad_bias.to(weight.scalar_type());
    }
    return result;
  }
};

template <typename Impl>
SyncBatchNorm converted(const ProcessGroup& group, const Impl& norm) {
  const SyncBatchNormOptions options{.num_features = norm.options.num_features(),
                                     .eps = norm.options.eps(),
                                     .momentum = norm.options.momentum(),
                                     .affine = norm.options.affine(),
                                     .track_running_stats = norm.options.track_running_stats()};
  SyncBatchNorm sync(group, options,
                     SyncBatchNormImpl::Tensors{norm.weight, norm.bias, norm.running_mean,
                                                norm.running_var, norm.num_batches_tracked});
  sync->train(norm.is_training());
  return sync;
}

// A null holder where the module is no BatchNorm.
SyncBatchNorm try_convert(const ProcessGroup& group, const torch::nn::Module& module) {
  if (const auto* norm = module.as<torch::nn::BatchNorm1dImpl>()) {
    return converted(group, *norm);
  }
  if (const auto* norm = module.as<torch::nn::BatchNorm2dImpl>()) {
    return converted(group, *norm);
  }
  if (const auto* norm = module.as<torch::nn::BatchNorm3dImpl>()) {
    return converted(group, *norm);
  }
  return nullptr;
}

void check(const ProcessGroup& group, const SyncBatchNormOptions& options) {
  if (options.num_features < 1) {
    throw InvalidArgument(
        concat("SyncBatchNorm: num_features is ", options.num_features, "; it must be at least 1"));
  }
  if (!group.is_member()) {
    throw InvalidArgument("SyncBatchNorm: this rank is not in the group");
  }
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const ProcessGroup& group, const SyncBatchNormOptions& options)
    : group_(group), options_(options) {
  check(group_, options_);
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const ProcessGroup& group, const SyncBatchNormOptions& options,
                                     const Tensors& shared)
    : group_(group), options_(options) {
  check(group_, options_);
  adopt(shared);
}

void SyncBatchNormImpl::reset() {
  Tensors fresh;
  if (options_.affine) {
    fresh.weight = at::ones({options_.num_features});
    fresh.bias = at::zeros({options_.num_features});
  }
  if (options_.track_running_stats) {
    fresh.running_mean = at::zeros({options_.num_features});
    fresh.running_var = at::ones({options_.num_features});
    fresh.num_batches_tracked = at::zeros({}, at::kLong);
  }
  adopt(fresh);
}

void SyncBatchNormImpl::adopt(const Tensors& tensors) {
  if (options_.affine) {
    weight = register_parameter("weight", tensors.weight);
    bias = register_parameter("bias", tensors.bias);
  }
  if (options_.track_running_stats) {
    running_mean = register_buffer("running_mean", tensors.running_mean);
    running_var = register_buffer("running_var", tensors.running_var);
    num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
  }
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (input.dim() < 2 || input.dim() > 5 || input.size(1) != options_.num_features) {
    throw InvalidArgument(concat("SyncBatchNorm: the input has shape ", input.sizes(),
                                 "; needed are 2 to 5 dimensions, the second one of size ",
                                 options_.num_features));
  }
  const bool track = options_.track_running_stats;
  double momentum = options_.momentum.value_or(0.0);
  if (is_training() && track) {
    num_batches_tracked.add_(1);
    if (!options_.momentum) {
      momentum = 1.0 / num_batches_tracked.item<double>();
    }
  }
  if (!is_training() || group_.size() == 1) {
    return at::batch_norm(input, optional(weight), optional(bias), optional(running_mean),
                          optional(running_var), is_training() || !track, momentum, options_.eps,
                          /*cudnn_enabled=*/true);
  }
  const RunningStatistics running{running_mean, running_var, momentum};
  return Normalization::apply(input, optional(weight), optional(bias), running, options_.eps,
                              group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options_.num_features
         << ", eps=" << options_.eps << ", momentum=";
  options_.momentum ? stream << *options_.momentum : stream << "None";
  stream << ", affine=" << options_.affine
         << ", track_running_stats=" << options_.track_running_stats << ")";
}

SyncBatchNorm to_sync_batch_norm(const ProcessGroup& group, const torch::nn::Module& batch_norm) {
  SyncBatchNorm sync = try_convert(group, batch_norm);
  if (!sync) {
    throw InvalidArgument(concat("SyncBatchNorm: a ", batch_norm.name(),
                                 " is not a BatchNorm1d, BatchNorm2d or BatchNorm3d"));
  }
  return sync;
}

torch::nn::Sequential convert_sync_batch_norm(const ProcessGroup& group,
                                              const torch::nn::Sequential& layers) {
  torch::nn::Sequential result;
  const auto names = layers->named_children();
  std::size_t position = 0;
  for (const torch::nn::AnyModule& layer : *layers) {
    std::string name = names[position++].key();
    const std::shared_ptr<torch::nn::Module> module = layer.ptr();
    if (SyncBatchNorm sync = try_convert(group, *module)) {
      result->push_back(std::move(name), sync);
    } else {
      result->push_back(std::move(name), layer);
    }
  }
  result->train(layers->is_training());
  return result;
}

}  // namespace lockstep
