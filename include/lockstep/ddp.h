#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm_hook.h"
#include "lockstep/error.h"
#include "lockstep/process_group.h"
#include "lockstep/tensor_walk.h"
#include "lockstep/world.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep {

class GradientCompression;

/// In what order the gradients of the ranks are added; see docs/determinism.md.
enum class Reduction {
  automatic,  // ordered on the CPU, native on NCCL
  ordered,  // rank 0 + rank 1 + ..., then divided: the same bits for any bucket layout and backend
  native,   // the backend's own all-reduce: Python's bits on the same backend
};

struct DistributedDataParallelOptions {
  /// MiB of gradients reduced together. Unset: 25, with a first bucket of 1, as in Python.
  std::optional<double> bucket_cap_mb = std::nullopt;
  /// A cap for each bucket in turn, the last one for all that follow. Excludes bucket_cap_mb.
  std::vector<double> bucket_cap_mb_list = {};
  /// Look for parameters that a forward did not use, at the price of walking the graph each time.
  bool find_unused_parameters = false;
  /// The graph is the same in every step. Allows parameters used several times, and unused ones.
  bool static_graph = false;
  /// Gradients are views into the buckets: a copy less, and memory for one copy less. The next step
  /// writes into them: clone those that are to be kept. (Python's default is false.)
  bool gradient_as_bucket_view = true;
  /// Send rank 0's buffers (BatchNorm's running statistics) to all before each synchronised
  /// forward.
  bool broadcast_buffers = true;
  /// Check that all ranks have the same model and give all of them rank 0's weights.
  bool init_sync = true;
  Reduction reduction = Reduction::automatic;
  /// Names of parameters and buffers that are left alone.
  std::vector<std::string> ignored = {};
};

struct JoinOptions {
  /// true: ranks without input count as zero gradients in the mean; false: the mean is over those
  /// that still have input.
  bool divide_by_initial_world_size = true;
  /// Throw on all ranks as soon as one has run out of input.
  bool throw_on_early_termination = false;
};

/// Parameters got no gradient in a backward that should have reduced all of them.
class UnusedParameters : public Error {
 public:
  UnusedParameters(const std::string& message, std::vector<std::string> names)
      : Error(message), names_(std::move(names)) {}
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

/// A parameter, or what stands for one in another language's binding.
struct NamedTensor {
  std::string name;
  std::shared_ptr<at::Tensor> tensor;
  bool sparse_gradient = false;
};

/// The part of DistributedDataParallel that does not depend on the module's type: it watches
/// backward and reduces gradients. Programs use DistributedDataParallel; bindings that have no
/// torch::nn::Module use this.
///
/// Thread rule: as for the module it serves, one thread.
class DataParallelEngine {
 public:
  DataParallelEngine(const ProcessGroup& group, std::shared_ptr<torch::nn::Module> module,
                     const DistributedDataParallelOptions& options);
  /// Without a module: a list of parameters in a fixed order, the same on every rank.
  DataParallelEngine(const ProcessGroup& group, std::vector<NamedTensor> parameters,
                     const DistributedDataParallelOptions& options);
  DataParallelEngine(DataParallelEngine&&) noexcept;
  ~DataParallelEngine();

  /// Around every forward. `inputs` are checked for their device; `outputs` may be replaced.
  void before_forward(const std::vector<const at::Tensor*>& inputs);
  void after_forward(const std::vector<at::Tensor*>& outputs);

  bool require_backward_grad_sync() const;
  void set_require_backward_grad_sync(bool value);

  void zero_grad();
  void register_comm_hook(CommHook hook);
  void register_comm_hook(CommHookFunction hook);
  void register_comm_hook(std::shared_ptr<GradientCompression> compression);
  void join(const std::function<void()>& loop, const JoinOptions& options);
  std::map<std::string, std::string> logging_data() const;
  const std::vector<std::string>& parameter_names() const;
  Reduction reduction() const;
  /// How long ago the last bucket was handed over to be reduced: asked right after backward, how
  /// long that had to wait for the other ranks. Nothing before the first, and with the native
  /// reduction, which does not tell.
  std::optional<std::chrono::nanoseconds> since_last_bucket() const;
  /// c10d measures some steps, and waits for the device to do so: from the eleventh step on no
  /// longer.
  void measure_no_more();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;  // backward refers to it weakly
};

/// While it lives, backward adds to the local gradients and nothing is sent. The forward must
/// happen inside as well. The first forward and backward after it reduce the sum.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(DataParallelEngine& engine)
      : engine_(engine), before_(engine.require_backward_grad_sync()) {
    engine_.set_require_backward_grad_sync(false);
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  ~NoSync() { engine_.set_require_backward_grad_sync(before_); }

 private:
  DataParallelEngine& engine_;
  bool before_;
};

/// Trains one model on all ranks: every rank computes gradients on its own samples, and backward
/// leaves the mean over all ranks in each parameter's gradient.
///
///     auto model = std::make_shared<Net>();
///     lockstep::DistributedDataParallel ddp(world, model);
///     auto loss = torch::mse_loss(ddp.forward(input), target);
///     loss.backward();   // gradients are reduced while it runs
///     optimizer.step();
///
/// The module stays yours: it is not wrapped into another one, so its parameters keep their names.
/// Forward goes through this object. Parameters must not be added or removed afterwards.
///
/// Thread rule: one thread. Collectives on the same group must not run during backward.
template <typename M>
class DistributedDataParallel {
 public:
  /// Every rank constructs it at the same point. Throws InvalidArgument when the model has nothing
  /// to train, lies on several kinds of devices, or differs between ranks.
  DistributedDataParallel(World& world, std::shared_ptr<M> module,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(world.group(), std::move(module), options) {}
  DistributedDataParallel(World& world, const torch::nn::ModuleHolder<M>& module,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(world.group(), module.ptr(), options) {}
  DistributedDataParallel(const ProcessGroup& group, std::shared_ptr<M> module,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)), engine_(group, module_, options) {}

  /// Calls the module's forward with these arguments and returns what it returns.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    std::vector<const at::Tensor*> inputs;
    auto note_input = [&](const at::Tensor& tensor) { inputs.push_back(&tensor); };
    (detail::walk_tensors<false>(std::as_const(arguments), note_input), ...);
    engine_.before_forward(inputs);

    auto output = module_->forward(std::forward<Arguments>(arguments)...);

    std::vector<at::Tensor*> outputs;
    auto note_output = [&](at::Tensor& tensor) { outputs.push_back(&tensor); };
    detail::walk_tensors<true>(output, note_output);
    engine_.after_forward(outputs);
    return output;
  }

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  M& module() { return *module_; }
  const std::shared_ptr<M>& module_ptr() const { return module_; }

  NoSync no_sync() { return NoSync(engine_); }

  /// Makes gradients ready for the next step: undefined, as libtorch's optimizers do.
  void zero_grad() { engine_.zero_grad(); }

  /// At most once, before the first backward.
  void register_comm_hook(CommHook hook) { engine_.register_comm_hook(hook); }
  void register_comm_hook(CommHookFunction hook) { engine_.register_comm_hook(std::move(hook)); }
  /// Hooks that remember: lockstep/compression.h.
  void register_comm_hook(std::shared_ptr<GradientCompression> compression) {
    engine_.register_comm_hook(std::move(compression));
  }

  /// Runs `loop`, in which ranks may call forward and backward different numbers of times. A rank
  /// that has finished takes part in the others' collectives with zeros until all have finished;
  /// then all get the model of one that finished last.
  void join(const std::function<void()>& loop, const JoinOptions& options = {}) {
    engine_.join(loop, options);
  }

  /// What the gradient engine knows of itself: bucket sizes, times of forward, backward and
  /// communication. The keys are Python's.
  std::map<std::string, std::string> logging_data() const { return engine_.logging_data(); }

  Reduction reduction() const { return engine_.reduction(); }
  DataParallelEngine& engine() { return engine_; }

 private:
  std::shared_ptr<M> module_;
  DataParallelEngine engine_;
};

template <typename M>
DistributedDataParallel(World&, const torch::nn::ModuleHolder<M>&) -> DistributedDataParallel<M>;
template <typename M>
DistributedDataParallel(World&, const torch::nn::ModuleHolder<M>&,
                        const DistributedDataParallelOptions&) -> DistributedDataParallel<M>;

}  // namespace lockstep
