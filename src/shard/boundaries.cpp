#include <algorithm>
#include <functional>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include "shard/engine.h"

// Where forward and backward tell a ShardedEngine how far they are.
namespace lockstep {
namespace {

thread_local ForwardUnits* current_units = nullptr;

struct BoundaryCall : torch::CustomClassHolder {
  explicit BoundaryCall(std::function<void()> call) : call(std::move(call)) {}
  std::function<void()> call;
};

/// An identity whose backward makes a call before the gradients go on.
struct Boundary : torch::autograd::Function<Boundary> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const c10::intrusive_ptr<BoundaryCall>& call,
                                                const at::TensorList& inputs) {
    context->set_materialize_grads(false);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    torch::autograd::variable_list outputs;
    // Not a view in autograd's eyes, so that a model may go on in place.
    for (const at::Tensor& input : inputs) outputs.push_back(input.detach());
    return outputs;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    c10::static_intrusive_pointer_cast<BoundaryCall>(context->saved_data["call"].toCapsule())
        ->call();
    gradients.insert(gradients.begin(), at::Tensor());  // for the call
    return gradients;
  }
};

}  // namespace

ForwardUnits* ForwardUnits::current() {
  return current_units;
}
ForwardUnits* ForwardUnits::set_current(ForwardUnits* units) {
  return std::exchange(current_units, units);
}

at::Tensor ShardedEngine::Impl::leave(const torch::nn::Module& given, const at::Tensor& x) {
  const std::size_t unit = index_of(given);
  if (unit == units.size()) return x;
  const bool has_backward = c10::GradMode::is_enabled() && x.requires_grad();
  if (options.reshard_after_forward || !has_backward) units[unit]->release();
  if (!has_backward) return x;
  const auto call = c10::make_intrusive<BoundaryCall>([weak = weak_from_this(), unit] {
    if (const auto self = weak.lock()) self->before_backward_of(unit);
  });
  return Boundary::apply(call, at::TensorList(&x, 1))[0];
}

void ShardedEngine::Impl::end_forward(const std::vector<at::Tensor*>& outputs) {
  leave_forward();
  has_passed = true;
  std::vector<at::Tensor*> passed_on;
  torch::autograd::variable_list inputs;
  for (at::Tensor* output : outputs) {
    if (!output->defined() || !output->grad_fn()) continue;
    passed_on.push_back(output);
    inputs.push_back(*output);
  }
  if (inputs.empty()) {
    for (const auto& unit : units) {
      if (unit) unit->release();
    }
    return;
  }
  const auto call = c10::make_intrusive<BoundaryCall>([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->begin_backward();
    if (self->units[self->root()]) self->units[self->root()]->await();
  });
  const torch::autograd::variable_list results = Boundary::apply(call, at::TensorList(inputs));
  for (std::size_t i = 0; i < passed_on.size(); ++i) *passed_on[i] = results[i];
}

void ShardedEngine::Impl::begin_backward() {
  if (in_backward) return;
  in_backward = true;
  reduce_order.clear();
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {  // one may be passed twice
    if (std::ranges::find(reduce_order, *unit) == reduce_order.end()) reduce_order.push_back(*unit);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {  // those that forward did not pass, and the root
    if (units[i] && std::ranges::find(reduce_order, i) == reduce_order.end()) {
      reduce_order.push_back(i);
    }
  }
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->end_backward();
  });
}

// Of each parameter's accumulator, which is called once a backward, when the gradient is there.
void ShardedEngine::Impl::watch_gradients() {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit]) continue;
    for (std::size_t i = 0; i < units[unit]->parameter_count(); ++i) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(units[unit]->parameter(i));
      using Variables = torch::autograd::variable_list;
      const auto key =
          accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
              [weak = weak_from_this(), unit, i](const Variables& outputs, const Variables&) {
                if (const auto self = weak.lock()) self->on_gradient(unit, i);
                return outputs;
              }));
      unwatch.push_back([accumulator, key] { accumulator->del_post_hook(key); });
    }
  }
}

}  // namespace lockstep
