#include "ddp/engine.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/shared_tensors.h"
#include "ddp/reducer_factory.h"

namespace lockstep {
namespace {

/// A broadcast writes into buffers in place; autograd would take that for a change by the user and
/// refuse the backward of an earlier forward.
class PreservedVersions {
 public:
  explicit PreservedVersions(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    for (const auto& tensor : tensors_) versions_.push_back(tensor._version());
  }
  ~PreservedVersions() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      c10::VariableVersion counter = tensors_[i].unsafeGetTensorImpl()->version_counter();
      counter.set_version(versions_[i]);  // copies share the count
    }
  }
  PreservedVersions(const PreservedVersions&) = delete;
  PreservedVersions& operator=(const PreservedVersions&) = delete;

 private:
  const std::vector<at::Tensor>& tensors_;
  std::vector<std::uint32_t> versions_;
};

}  // namespace

DataParallelEngine::DataParallelEngine(const ProcessGroup& group,
                                       std::shared_ptr<torch::nn::Module> module,
                                       const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<Impl>()) {
  if (!module) throw InvalidArgument("DistributedDataParallel: the module is null");
  impl_->handle = group;
  impl_->options = options;
  impl_->module = std::move(module);
  impl_->ignored = {options.ignored.begin(), options.ignored.end()};
  auto unknown = impl_->ignored;
  for (const auto& walked : walk_parameters(*impl_->module, {})) unknown.erase(walked.name);
  for (const auto& walked : walk_buffers(*impl_->module, {})) unknown.erase(walked.name);
  if (!unknown.empty()) {
    throw InvalidArgument(concat("DistributedDataParallel: ignored names '", *unknown.begin(),
                                 "', which the module does not have"));
  }
  for (const auto& walked : walk_parameters(*impl_->module, {})) {
    if (!walked.tensor.requires_grad() || impl_->ignored.contains(walked.name)) {
      impl_->other_parameters.push_back(walked.tensor);
      continue;
    }
    impl_->parameters.push_back(walked.tensor);
    impl_->names.push_back(walked.name);
    impl_->sparse.push_back(walked.sparse_gradient);
  }
  impl_->set_up();
}

DataParallelEngine::DataParallelEngine(const ProcessGroup& group,
                                       std::vector<NamedTensor> parameters,
                                       const DistributedDataParallelOptions& options)
    : impl_(std::make_shared<Impl>()) {
  impl_->handle = group;
  impl_->options = options;
  if (!options.ignored.empty()) {
    throw InvalidArgument("DistributedDataParallel: ignored needs a module; leave the tensor out");
  }
  for (const auto& each : parameters) {
    if (!each.tensor || !each.tensor->defined()) {
      throw InvalidArgument(
          concat("DistributedDataParallel: parameter '", each.name, "' is undefined"));
    }
    if (!each.tensor->requires_grad()) {
      impl_->other_parameters.push_back(*each.tensor);
      continue;
    }
    impl_->parameters.push_back(*each.tensor);
    impl_->names.push_back(each.name);
    impl_->sparse.push_back(each.sparse_gradient);
  }
  impl_->set_up();
}

DataParallelEngine::DataParallelEngine(DataParallelEngine&&) noexcept = default;

DataParallelEngine::~DataParallelEngine() {
  if (!impl_) return;
  impl_->hook_queue.reset();  // it uses what follows
  // The reduction's thread must end before the group can be torn down by its last owner.
  impl_->ordered.reset();
}

void DataParallelEngine::Impl::set_up() {
  group = handle.impl();
  if (!group) {
    throw InvalidArgument("DistributedDataParallel: this rank is not a member of the group");
  }
  group->guard->check_usable("DistributedDataParallel");
  if (parameters.empty()) {
    throw InvalidArgument(
        concat("DistributedDataParallel: the model has no parameter that requires a gradient (of ",
               other_parameters.size(), "); there is nothing to reduce"));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].device().type() != device().type()) {
      throw InvalidArgument(concat("DistributedDataParallel: parameter '", names[i], "' is on ",
                                   parameters[i].device().str(), " but '", names[0], "' is on ",
                                   device().str(), "; move the whole model to one kind of device"));
    }
  }
  reduction = chosen_reduction();

  if (options.init_sync) {
    verify_across_ranks();
    broadcast_state(/*source=*/0, /*with_buffers=*/options.broadcast_buffers);
  }
  reducer = make_reducer({.parameters = parameters,
                          .names = names,
                          .sparse_gradients = sparse,
                          .group = group->group,
                          .options = options});
  logger = std::make_shared<c10d::Logger>(reducer);
  reducer->set_logger(logger);
  const std::vector<int> device_ids =
      device().is_cpu() ? std::vector<int>{} : std::vector<int>{device().index()};
  logger->set_construction_data_and_log(module ? module_name(*module) : "tensors", device_ids,
                                        device_ids.empty() ? -1 : device_ids.front(),
                                        options.broadcast_buffers, /*has_sync_bn=*/false,
                                        options.static_graph);
  if (options.static_graph) {
    reducer->set_static_graph();
    logger->set_static_graph();
  }
  if (reduction == Reduction::ordered) {
    ordered = std::make_unique<OrderedReduction>(group);
    register_hook_with_reducer();
  }
  // Otherwise they are rebuilt after the first step.
  if (options.find_unused_parameters && !options.static_graph) share_buckets();
  if (options.init_sync && group->rank == 0 && group->name == "0" &&
      !std::getenv("LOCKSTEP_QUIET")) {
    std::fprintf(
        stderr, "lockstep: %d ranks, %s, reduction %s (docs/determinism.md)\n", group->size(),
        group->backend.c_str(),
        reduction == Reduction::ordered
            ? "ordered: bit-identical for the same ranks, threads, torch build and machine type"
            : "native: the backend's order of addition");
  }
}

Reduction DataParallelEngine::Impl::chosen_reduction() const {
  // A rank of another language knows only the backend's own all-reduce.
  const bool mixed = !all_ranks_are_lockstep();
  if (options.reduction == Reduction::ordered && mixed) {
    throw InvalidArgument(
        "DistributedDataParallel: Reduction::ordered needs lockstep on every rank; a rank of "
        "another "
        "language knows only the native one");
  }
  if (options.reduction != Reduction::automatic) return options.reduction;
  return mixed || !group->serves_on_host(device()) ? Reduction::native : Reduction::ordered;
}

std::vector<at::Tensor> DataParallelEngine::Impl::buffers() const {
  std::vector<at::Tensor> tensors;
  if (!module) return tensors;
  for (const auto& walked : walk_buffers(*module, ignored)) tensors.push_back(walked.tensor);
  return tensors;
}

void DataParallelEngine::Impl::broadcast_state(int source, bool with_buffers) {
  std::vector<at::Tensor> state;
  if (module) {
    for (const auto& walked : walk_parameters(*module, ignored))
      state.push_back(walked.tensor.detach());
  } else {
    for (const auto& parameter : parameters) state.push_back(parameter.detach());
    for (const auto& parameter : other_parameters) state.push_back(parameter.detach());
  }
  if (with_buffers) {
    for (const auto& buffer : buffers()) state.push_back(buffer.detach());
  }
  c10d::broadcast_coalesced(group->group, state, kBroadcastBytes, source);
}

bool DataParallelEngine::Impl::syncs_buffers() const {
  return require_forward_param_sync && options.broadcast_buffers && module && !buffers().empty();
}

void DataParallelEngine::Impl::sync_buffers(int source) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = buffers();
  const PreservedVersions preserved(tensors);
  c10d::broadcast_coalesced(group->group, tensors, kBroadcastBytes, source);
}

// Gradients that lie where all ranks of the machine see them are reduced there.
void DataParallelEngine::Impl::share_buckets() {
  constexpr std::size_t kWorthIt = 256 << 10;  // bytes; smaller ones are copied in any case
  for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
    const at::Tensor& buffer = bucket.getBuffer();
    if (!buffer.defined() || buffer.is_sparse() || buffer.nbytes() < kWorthIt) continue;
    move_to_shared_memory(*group, buffer);
  }
}

// After the first backward the reducer knows in what order gradients come.
void DataParallelEngine::Impl::rebuild_buckets() {
  if (!reducer->rebuild_buckets()) return;
  share_buckets();
  homes.reset();
}

// Without a hook the reducer divides, and its bits would depend on where it finds a gradient.
void DataParallelEngine::Impl::open_homes() {
  if (!hook_registered || !options.gradient_as_bucket_view || !device().is_cpu()) return;
  if (!homes) homes = std::make_unique<GradientHomes>(*reducer);
  homes->set_open(require_backward_grad_sync);
}

// A backward that finds no gradients leaves tensors of its own, which a backward that is reduced
// puts into the buckets at once. Those of several backwards are added in the buckets from the
// beginning: otherwise there would be two sets of gradients meanwhile. Where parameters may be
// unused, theirs stay undefined, so that optimizers leave them alone.
void DataParallelEngine::Impl::add_up_in_buckets() {
  const bool all_used = !options.find_unused_parameters && !options.static_graph;
  if (!options.gradient_as_bucket_view || !all_used) return;
  const auto has_gradient = [](const at::Tensor& parameter) { return parameter.grad().defined(); };
  if (std::ranges::all_of(parameters, has_gradient)) return;  // all but the first of several
  const at::NoGradGuard no_grad;
  visit_bucket_places(*reducer, [](at::Tensor& parameter, const at::Tensor& place) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = place.zero_();
  });
}

void DataParallelEngine::before_forward(const std::vector<const at::Tensor*>& inputs) {
  Impl& self = *impl_;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // Whole numbers may well stay on the CPU: lengths, sizes, flags.
    if (inputs[i]->defined() && inputs[i]->is_floating_point() &&
        inputs[i]->device().type() != self.device().type()) {
      throw InvalidArgument(concat("DistributedDataParallel: input tensor ", i,
                                   " of the forward is on ", inputs[i]->device().str(),
                                   " but the model is on ", self.device().str(),
                                   "; move it with .to(...)"));
    }
  }
  self.group->guard->check_usable("forward");
  const bool gradients = at::GradMode::is_enabled();
  if (gradients && self.require_backward_grad_sync) {
    self.check_finished();
    self.logger->set_runtime_stats_and_log();
    self.reducer->prepare_for_forward();
  }
  if (self.joining) self.announce_presence();
  if (gradients) {
    self.rebuild_buckets();
    self.open_homes();
    if (!self.require_backward_grad_sync) self.add_up_in_buckets();
  }
  if (self.syncs_buffers()) self.sync_buffers(self.joining ? self.agree_on_rank(true) : 0);
  if (self.joining) self.announce_sync(self.require_backward_grad_sync);
}

void DataParallelEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  Impl& self = *impl_;
  const bool searches = self.options.find_unused_parameters && !self.options.static_graph;
  self.require_forward_param_sync = at::GradMode::is_enabled() && self.require_backward_grad_sync;
  if (self.require_forward_param_sync) {
    std::vector<at::Tensor> roots;
    if (searches) {
      for (const at::Tensor* output : outputs) {
        if (output->defined()) roots.push_back(*output);
      }
    }
    self.reducer->prepare_for_backward(roots);
  }
  if (searches || (self.options.static_graph && !self.delay_enqueued)) {
    self.pass_through_sink(outputs);
  }
  if (self.require_forward_param_sync) self.watch_backward(outputs);
}

bool DataParallelEngine::require_backward_grad_sync() const {
  return impl_->require_backward_grad_sync;
}

void DataParallelEngine::set_require_backward_grad_sync(bool value) {
  impl_->require_backward_grad_sync = value;
}

void DataParallelEngine::zero_grad() {
  for (auto& parameter : impl_->other_parameters) parameter.mutable_grad().reset();
  for (auto& parameter : impl_->parameters) parameter.mutable_grad().reset();
}

std::map<std::string, std::string> DataParallelEngine::logging_data() const {
  const auto data = impl_->logger->get_ddp_logging_data();
  std::map<std::string, std::string> all(data.strs_map.begin(), data.strs_map.end());
  for (const auto& [key, value] : data.ints_map) all[key] = std::to_string(value);
  return all;
}

const std::vector<std::string>& DataParallelEngine::parameter_names() const {
  return impl_->names;
}

Reduction DataParallelEngine::reduction() const {
  return impl_->reduction;
}

void DataParallelEngine::measure_no_more() {
  impl_->reducer->set_ddp_runtime_logging_sample_rate(std::numeric_limits<int>::max());
}

std::optional<std::chrono::nanoseconds> DataParallelEngine::since_last_bucket() const {
  if (!impl_->last_bucket_at) return std::nullopt;
  return std::chrono::steady_clock::now() - *impl_->last_bucket_at;
}

}  // namespace lockstep
