#include "lockstep/local_sgd.h"

#include <cstdio>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/group_impl.h"
#include "comm/recovery.h"
#include "comm/tensor_future.h"
#include "ddp/module_walk.h"
#include "lockstep/error.h"
#include "lockstep/state.h"
#include "lockstep/world.h"

namespace lockstep {
namespace {

void warn_of_recovery(World& world, const char* what) {
  if (world.rank() != 0 || !can_recover(world)) return;
  std::fprintf(stderr,
               "lockstep: %s: ranks have weights of their own between two averages; recovery of a "
               "rank that dies is not bit-identical\n",
               what);
}

std::int64_t count_in(const State& state, const char* what) {
  const auto found = state.values.find("step");
  if (found == state.values.end()) {
    throw InvalidArgument(concat(what, ": the state is that of something else"));
  }
  return found->get<std::int64_t>();
}

c10::intrusive_ptr<c10::ivalue::Future> mean_in(GroupImpl& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor.div_(group.size())};
  return group.group->allreduce(tensors)->getFuture()->then(
      [](c10::ivalue::Future& done) -> c10::IValue {
        return c10d::detail::parseCppCommHookResult(done.value());
      },
      c10::TensorType::get());
}

// One tensor of all of them, which is averaged at once.
at::Tensor flat_mean(ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.detach().reshape({-1}));
  at::Tensor all = at::cat(flat);
  all.div_(group.size());
  group.all_reduce(all);
  return all;
}

void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& into) {
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : into) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

struct PostLocalSGD::Shared {
  ProcessGroup world, subgroup;
  PostLocalSGDOptions options;
  std::int64_t step = 0;
};

PostLocalSGD::PostLocalSGD(World& world, const ProcessGroup& subgroup,
                           const PostLocalSGDOptions& options)
    : shared_(std::make_shared<Shared>()) {
  if (options.start_localSGD_iter < 0) {
    throw InvalidArgument(concat("PostLocalSGD: start_localSGD_iter is ",
                                 options.start_localSGD_iter, "; it is never negative"));
  }
  if (options.post_local_gradient_allreduce && !subgroup.is_member()) {
    throw InvalidArgument("PostLocalSGD: this rank is not a member of the subgroup");
  }
  *shared_ = {.world = world.group(), .subgroup = subgroup, .options = options};
  warn_of_recovery(world, "PostLocalSGD");
}

CommHookFunction PostLocalSGD::hook() const {
  return [shared = shared_](c10d::GradBucket& bucket) {
    const bool global = shared->step < shared->options.start_localSGD_iter;
    if (global && bucket.isLast()) ++shared->step;
    const at::Tensor& buffer = bucket.getBufferRef();
    if (!global && !shared->options.post_local_gradient_allreduce) {
      auto future = make_tensor_future(buffer);
      future->markCompleted(buffer);
      return future;
    }
    return mean_in(*(global ? shared->world : shared->subgroup).impl(), buffer);
  };
}

State PostLocalSGD::state() const {
  State state;
  state.values["step"] = shared_->step;
  return state;
}

void PostLocalSGD::load_state(const State& state) {
  shared_->step = count_in(state, "PostLocalSGD");
}

PeriodicModelAverager::PeriodicModelAverager(World& world,
                                             const PeriodicModelAveragerOptions& options)
    : group_(world.group()), options_(options) {
  if (options.period < 1 || options.warmup_steps < 0) {
    throw InvalidArgument(concat("PeriodicModelAverager: period ", options.period,
                                 ", warmup_steps ", options.warmup_steps,
                                 "; the first must be positive and the second not negative"));
  }
}

bool PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const std::int64_t since = step_++ - options_.warmup_steps;
  if (since < 0 || since % options_.period != 0) return false;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) averaged.push_back(parameter);
  }
  if (averaged.empty()) return false;
  unflatten(flat_mean(group_, averaged), averaged);
  return true;
}

State PeriodicModelAverager::state() const {
  State state;
  state.values["step"] = step_;
  return state;
}

void PeriodicModelAverager::load_state(const State& state) {
  step_ = count_in(state, "PeriodicModelAverager");
}

struct OuterOptimizer::Impl {
  ProcessGroup group;
  OuterOptimizerOptions options;
  std::vector<at::Tensor> parameters;
  at::Tensor weights, momentum;  // flat, as of the last outer step
  std::int64_t step = 0;
};

OuterOptimizer::OuterOptimizer(World& world, const torch::nn::Module& module,
                               const OuterOptimizerOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.every < 1 || !(options.lr > 0) || !(options.momentum >= 0 && options.momentum < 1)) {
    throw InvalidArgument(concat("OuterOptimizer: every ", options.every, ", lr ", options.lr,
                                 ", momentum ", options.momentum,
                                 "; the first two must be positive, momentum in [0, 1)"));
  }
  const at::NoGradGuard no_grad;
  impl_->group = world.group();
  impl_->options = options;
  std::vector<at::Tensor> flat;
  for (const WalkedTensor& walked : walk_parameters(module, {})) {
    if (!walked.tensor.requires_grad()) continue;
    impl_->parameters.push_back(walked.tensor);
    flat.push_back(walked.tensor.detach().reshape({-1}));
  }
  if (flat.empty()) throw InvalidArgument("OuterOptimizer: the module has nothing to train");
  impl_->weights = at::cat(flat);
  impl_->momentum = at::zeros_like(impl_->weights);
  warn_of_recovery(world, "OuterOptimizer");
}

OuterOptimizer::~OuterOptimizer() = default;

bool OuterOptimizer::step() {
  Impl& self = *impl_;
  if (++self.step % self.options.every != 0) return false;
  const at::NoGradGuard no_grad;
  // The way that the ranks have come, backwards: what a gradient is.
  at::Tensor gradient = self.weights - flat_mean(self.group, self.parameters);
  self.momentum.mul_(self.options.momentum).add_(gradient);
  if (self.options.nesterov) {
    gradient.add_(self.momentum, self.options.momentum);
  } else {
    gradient = self.momentum;
  }
  self.weights.sub_(gradient, self.options.lr);
  unflatten(self.weights, self.parameters);
  return true;
}

State OuterOptimizer::state() const {
  State state;
  state.values["step"] = impl_->step;
  state.tensors = {{"weights", impl_->weights}, {"momentum", impl_->momentum}};
  return state;
}

void OuterOptimizer::load_state(const State& state) {
  const std::int64_t step = count_in(state, "OuterOptimizer");
  for (const char* name : {"weights", "momentum"}) {
    const auto found = state.tensors.find(name);
    if (found == state.tensors.end() || found->second.numel() != impl_->weights.numel()) {
      throw InvalidArgument(
          concat("OuterOptimizer: '", name, "' of the state is not of this model"));
    }
  }
  const at::NoGradGuard no_grad;
  impl_->weights.copy_(state.tensors.at("weights"));
  impl_->momentum.copy_(state.tensors.at("momentum"));
  impl_->step = step;
}

}  // namespace lockstep
