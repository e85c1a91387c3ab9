#include "ddp/gradient_homes.h"

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace lockstep {

/// Waits at the node that puts a parameter's gradient into the parameter. As a hook of it, it is
/// found there by those who compute the gradient, and learns when the gradient has come.
class GradientHome : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHome(at::Tensor place) : place_(std::move(place)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    open_ = false;
    return outputs;
  }

  void set_open(bool open) { open_ = open; }
  bool close() { return std::exchange(open_, false); }
  const at::Tensor& place() const { return place_; }

 private:
  at::Tensor place_;
  bool open_ = false;
};

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

// A hook may keep the gradient that it sees, and later expects to find it unreduced.
bool someone_looks(Node& node) {
  return !node.pre_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks();
}

// Where the gradient of the second factor goes that the backward of a product is computing.
AccumulateGrad* target_of(Node& product) {
  const std::string name = product.name();
  if (name != "AddmmBackward0" && name != "MmBackward0") return nullptr;
  if (!product.post_hooks().empty()) return nullptr;
  Node* next = product.next_edges().back().function.get();
  if (next && next->name() == "TBackward0") {
    if (someone_looks(*next) || !next->post_hooks().empty()) return nullptr;
    next = next->next_edge(0).function.get();
  }
  return dynamic_cast<AccumulateGrad*>(next);
}

GradientHome* home_at(AccumulateGrad& target) {
  constexpr std::size_t kReducerAndHome = 2;
  if (target.post_hooks().size() > kReducerAndHome || someone_looks(target)) return nullptr;
  for (const auto& hook : target.post_hooks()) {
    if (auto* home = dynamic_cast<GradientHome*>(hook.get())) return home;
  }
  return nullptr;
}

bool is_plain_float(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.dim() == 2 &&
         tensor.scalar_type() == at::kFloat &&
         !tensor._fw_grad(/*level=*/0).defined();  // a product with a given result has no tangent
}

// The product for the other factor's gradient has the parameter in it.
bool is_gradient_of(const at::Tensor& parameter, const at::Tensor& left, const at::Tensor& right) {
  return is_plain_float(left) && is_plain_float(right) && is_plain_float(parameter) &&
         parameter.is_contiguous() &&  // else the product may be that of the transposed gradient
         parameter.size(0) == left.size(0) && parameter.size(1) == right.size(1) &&
         !left.is_alias_of(parameter) && !right.is_alias_of(parameter);
}

// torch::autograd::grad() and backward() of some inputs hand gradients to their callers.
bool backward_is_of_everything() {
  const auto* part_of_graph = torch::autograd::get_current_graph_task_exec_info();
  return !part_of_graph || part_of_graph->empty();
}

// Where the product of left and right is to be written if it is the gradient of a parameter that
// has a home; undefined if not.
at::Tensor place_for_product(const at::Tensor& left, const at::Tensor& right) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return {};  // not within a backward
  AccumulateGrad* target = target_of(*node);
  GradientHome* home = target ? home_at(*target) : nullptr;
  if (!home || !is_gradient_of(target->variable, left, right)) return {};
  // Only the first product after a forward may: a later one could be added to it, or meet a bucket
  // that is being reduced.
  if (!home->close() || target->variable.grad().defined() || !backward_is_of_everything()) {
    return {};
  }
  const at::Tensor& place = home->place();
  if (place.sizes() != target->variable.sizes()) return {};  // it was given other data since
  if (left.is_alias_of(place) || right.is_alias_of(place)) return {};
  return place.detach();  // AccumulateGrad keeps a tensor that nobody else has; others it clones
}

// aten::mm for CPU tensors, in the place of the kernel that records it for autograd.
at::Tensor mm_at_home(c10::DispatchKeySet keys, const at::Tensor& left, const at::Tensor& right) {
  if (!at::GradMode::is_enabled()) {
    at::Tensor place = place_for_product(left, right);
    if (place.defined()) return at::mm_out(place, left, right);
  }
  // PyTorch's kernel is registered for all devices at once, so that it is also found under a key
  // that this one has not taken.
  return at::_ops::mm::redispatch(keys.remove(c10::DispatchKey::AutogradCPU) |
                                      c10::DispatchKeySet(c10::DispatchKey::AutogradOther),
                                  left, right);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("mm", TORCH_FN(mm_at_home));
}

}  // namespace

void visit_bucket_places(
    const c10d::Reducer& reducer,
    const std::function<void(at::Tensor& parameter, const at::Tensor& place)>& visit) {
  for (auto& bucket : reducer.get_grad_buckets(/*return_zero_tensors=*/false)) {
    const at::Tensor& buffer = bucket.getBuffer();
    if (!buffer.defined() || buffer.is_sparse()) continue;
    const std::vector<at::Tensor> places = bucket.getGradients();
    std::vector<at::Tensor> parameters = bucket.getParameters();
    for (std::size_t i = 0; i < places.size(); ++i) {
      at::Tensor place = places[i];
      if (parameters[i].is_non_overlapping_and_dense()) {
        place = place.as_strided(parameters[i].sizes(), parameters[i].strides(),
                                 place.storage_offset());
      }
      visit(parameters[i], place);
    }
  }
}

struct GradientHomes::Resident {
  Resident(const at::Tensor& parameter, const at::Tensor& place)
      : accumulator(torch::autograd::impl::grad_accumulator(parameter)) {
    auto owned = std::make_unique<GradientHome>(place);
    home = owned.get();
    key = accumulator->add_post_hook(std::move(owned));
  }
  // A graph that is left may still have the node.
  ~Resident() { accumulator->del_post_hook(key); }

  decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>())) accumulator;
  GradientHome* home = nullptr;
  std::uintptr_t key = 0;
};

GradientHomes::GradientHomes(const c10d::Reducer& reducer) {
  const at::NoGradGuard no_grad;
  visit_bucket_places(reducer, [&](at::Tensor& parameter, const at::Tensor& place) {
    if (parameter.dim() != 2 || !parameter.is_cpu() || !parameter.is_contiguous()) return;
    residents_.push_back(std::make_unique<Resident>(parameter, place));
  });
}

GradientHomes::~GradientHomes() = default;

void GradientHomes::set_open(bool open) {
  for (const auto& resident : residents_) resident->home->set_open(open);
}

}  // namespace lockstep
