#include "optim/step_in_backward.h"

#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/error.h"
#include "optim/weight_copies.h"
#ifdef LOCKSTEP_CUDA
#include "optim/side_stream.h"
#endif

namespace lockstep {
namespace {

#ifdef LOCKSTEP_CUDA
using UpdateStream = SideStream;
#else
// Is never used: parameters are on the CPU.
struct UpdateStream {
  template <typename Work>
  void run(Work&& work) {
    work();
  }
  void join() {}
};
#endif

[[noreturn]] void refuse_update(const NamedParameter& parameter, const std::string& why) {
  throw InvalidArgument(concat("StepInBackward: parameter ", parameter.name, " ", why));
}

// DistributedDataParallel has its hooks there.
bool is_hooked_by_ddp(const at::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return node != nullptr && !node->post_hooks().empty();
}

}  // namespace

struct StepInBackward::Impl {
  struct Ready : torch::autograd::PostAccumulateGradHook {
    Ready(Impl& owner, std::size_t index) : impl(owner), number(index) {}
    void operator()(const at::Tensor&) override { impl.on_ready(number); }
    Impl& impl;
    std::size_t number;
  };

  Impl(Optimizer& changed, StepInBackwardOptions chosen)
      : optimizer(changed), options(std::move(chosen)), parameters(changed.parameters()) {
    for (const NamedParameter& parameter : parameters) {
      if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor) != nullptr) {
        refuse_update(parameter, "has someone else's hook on its gradient");
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].tensor,
                                                     std::make_unique<Ready>(*this, i));
    }
  }

  ~Impl() {
    for (const NamedParameter& parameter : parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    }
  }

  void begin() {
    for (const NamedParameter& parameter : parameters) {
      const at::Tensor& tensor = parameter.tensor;
      if (is_hooked_by_ddp(tensor)) {
        refuse_update(parameter,
                      "belongs to DistributedDataParallel, whose gradients are complete "
                      "after backward only; use Optimizer::step()");
      }
      if (tensor.grad().defined()) {
        refuse_update(parameter,
                      "has a gradient already; call zero_grad() before forward, or let "
                      "Optimizer::step() take the sum of several backwards");
      }
      // Each device has a thread of its own in backward.
      if (tensor.device() != parameters.front().tensor.device()) {
        refuse_update(parameter, concat("is on ", tensor.device(), ", others on ",
                                        parameters.front().tensor.device(),
                                        "; a model on several devices needs Optimizer::step()"));
      }
    }
    const std::lock_guard lock(mutex);
    has_come.assign(parameters.size(), false);
    copies = KeptCopies::current();
    is_running = true;
  }

  // On the thread of the parameters' device; on the CPU that is backward's own.
  void on_ready(std::size_t number) {
    const std::lock_guard lock(mutex);
    if (!is_running) return;
    const NamedParameter& parameter = parameters[number];
    // Autograd gives a parameter's gradient once, unless a node has a backward of its own in it.
    if (has_come[number]) {
      throw Error(concat("StepInBackward: parameter ", parameter.name,
                         " has got a second gradient in one backward, when it may have been "
                         "updated by the first; use Optimizer::step()"));
    }
    has_come[number] = true;
    waiting.push_back(number);
    waiting_bytes += static_cast<std::int64_t>(parameter.tensor.nbytes());
    if (waiting_bytes < options.update_bytes) return;
    if (is_on_gpu()) {
      side.run([&] { update(); });
    } else {
      update();
    }
  }

  // Of all parameters that have a gradient: those that wait for it.
  void update() {
    if (waiting.empty()) return;
    std::optional<KeptCopies::Scope> scope;  // is per thread
    if (copies != nullptr) scope.emplace(*copies);
    optimizer.step({.lr = options.lr});
    for (const std::size_t number : waiting) {
      at::Tensor& gradient = parameters[number].tensor.mutable_grad();
      // What is freed belongs to backward's next kernel, and the update may not have begun.
      if (is_on_gpu()) held.push_back(gradient);
      gradient.reset();
    }
    waiting.clear();
    waiting_bytes = 0;
  }

  void finish() {
    const std::lock_guard lock(mutex);
    update();
    let_go();
  }

  void give_up() {
    const std::lock_guard lock(mutex);
    for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad().reset();
    waiting.clear();
    waiting_bytes = 0;
    let_go();
  }

  void let_go() {
    is_running = false;
    side.join();
    held.clear();
  }

  bool is_on_gpu() const { return parameters.front().tensor.is_cuda(); }

  Optimizer& optimizer;
  const StepInBackwardOptions options;
  const std::vector<NamedParameter> parameters;
  std::mutex mutex;  // over all below
  bool is_running = false;
  KeptCopies* copies = nullptr;  // of the thread that calls backward()
  std::vector<bool> has_come;    // a gradient, by parameter
  std::vector<std::size_t> waiting;
  std::int64_t waiting_bytes = 0;
  std::vector<at::Tensor> held;  // gradients that updates on the GPU may still read
  UpdateStream side;
};

StepInBackward::StepInBackward(Optimizer& optimizer, StepInBackwardOptions options)
    : impl_(std::make_unique<Impl>(optimizer, std::move(options))) {}

StepInBackward::~StepInBackward() = default;

void StepInBackward::backward(const at::Tensor& loss) {
  impl_->begin();
  try {
    loss.backward();
    impl_->finish();
  } catch (...) {
    // A GPU that has failed fails here, too; what it failed with first says more.
    try {
      impl_->give_up();
    } catch (const std::exception&) {
    }
    throw;
  }
}

}  // namespace lockstep
