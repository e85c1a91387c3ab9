#include "lockstep/step_transaction.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/group_impl.h"
#include "ddp/engine.h"
#include "ddp/module_walk.h"
#include "lockstep/error.h"

namespace lockstep {

struct StepTransactions::Impl {
  ProcessGroup group;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> committed;  // the buffers' values when the step began
  std::vector<at::Tensor> of_slot_0;  // set while a later slot of the same process is computed
  bool running = false;
  bool first_slot_done = false;

  static void copy(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
    if (to.empty()) return;
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(to, from);
  }

  static std::vector<at::Tensor> like(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const auto& tensor : tensors) copies.push_back(at::empty_like(tensor));
    return copies;
  }

  void drop_gradients() {
    for (auto& parameter : parameters) parameter.mutable_grad() = at::Tensor();
  }

  void share_buffers() {
    if (!buffers.empty() && first_slot_done) copy(buffers, of_slot_0);
    const at::NoGradGuard no_grad;
    const auto& members = group.impl();
    // A group that was aborted under a reduction leaves numbers that nobody has computed. And one
    // that is left alone hears nowhere else that others want to join it.
    members->guard->check_usable("broadcast");
    if (buffers.empty() || group.size() == 1) return;
    c10d::broadcast_coalesced(members->group, buffers, kBroadcastBytes, /*rank=*/0);
    const at::Device device = buffers.front().device();
    if (!device.is_cpu()) {  // there the broadcast has only been put in line
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.synchronizeStream(guard.getStream(device));
      members->guard->check_usable("broadcast");
    }
  }
};

StepTransactions::StepTransactions(ProcessGroup group, std::shared_ptr<torch::nn::Module> module)
    : impl_(std::make_unique<Impl>()) {
  if (!module) throw InvalidArgument("StepTransactions: the module is null");
  impl_->group = std::move(group);
  impl_->module = std::move(module);
  for (const auto& walked : walk_parameters(*impl_->module, {})) {
    impl_->parameters.push_back(walked.tensor);
  }
  for (const auto& walked : walk_buffers(*impl_->module, {})) {
    impl_->buffers.push_back(walked.tensor.detach());
  }
  impl_->committed = Impl::like(impl_->buffers);
}

StepTransactions::~StepTransactions() = default;

StepTransactions::Step StepTransactions::begin() {
  LOCKSTEP_CHECK(!impl_->running, "a step begins before the last one has ended");
  impl_->running = true;
  impl_->first_slot_done = false;
  Impl::copy(impl_->committed, impl_->buffers);
  return Step(*this);
}

void StepTransactions::Step::next_slot() {
  LOCKSTEP_CHECK(owner_, "next_slot() after the step has ended");
  Impl& impl = *owner_->impl_;
  if (!impl.first_slot_done) {
    if (impl.of_slot_0.empty()) impl.of_slot_0 = Impl::like(impl.buffers);
    Impl::copy(impl.of_slot_0, impl.buffers);
    impl.first_slot_done = true;
  }
  Impl::copy(impl.buffers, impl.committed);
}

void StepTransactions::Step::commit(const std::function<void()>& apply,
                                    const std::function<void()>& agree) {
  LOCKSTEP_CHECK(owner_, "commit() after the step has ended");
  Impl& impl = *owner_->impl_;
  impl.share_buffers();  // may fail; then the step is aborted by whoever catches
  if (agree) agree();    // likewise
  owner_ = nullptr;
  impl.running = false;
  apply();
}

void StepTransactions::Step::abort() {
  if (!owner_) return;
  Impl& impl = *std::exchange(owner_, nullptr)->impl_;
  impl.running = false;
  // What a broken group has in flight would write into them later.
  const auto& members = impl.group.impl();
  if (members && !members->guard->working()) members->guard->abort();
  Impl::copy(impl.buffers, impl.committed);
  impl.drop_gradients();
}

StepTransactions::Step::~Step() {
  abort();
}

}  // namespace lockstep
