#include <functional>
#include <sstream>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "ddp/engine.h"

// What happens between a forward and the end of its backward, beyond what c10d::Reducer does.
namespace lockstep {
namespace {

using torch::autograd::variable_list;

struct Callback : torch::CustomClassHolder {
  explicit Callback(std::function<void()> call) : call(std::move(call)) {}
  std::function<void()> call;
};

/// An identity through which outputs pass. Outputs that the loss does not use get an undefined
/// gradient here instead of none at all, so that the reducer hears of their parameters; and with a
/// static graph it is the place from which the first backward is told to reduce at its end.
struct Sink : torch::autograd::Function<Sink> {
  static variable_list forward(torch::autograd::AutogradContext* context,
                               const c10::intrusive_ptr<Callback>& callback,
                               const at::TensorList& inputs) {
    context->set_materialize_grads(false);
    context->saved_data["callback"] = c10::IValue::make_capsule(callback);
    variable_list outputs;
    for (const auto& input : inputs) outputs.push_back(input.clone());
    return outputs;
  }

  static variable_list backward(torch::autograd::AutogradContext* context,
                                variable_list gradients) {
    c10::static_intrusive_pointer_cast<Callback>(context->saved_data["callback"].toCapsule())
        ->call();
    variable_list result{at::Tensor()};  // for the callback
    result.insert(result.end(), gradients.begin(), gradients.end());
    return result;
  }
};

void at_end_of_backward(std::function<void()> call) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(call));
}

// "Parameter indices which did not receive grad for rank 1: 4 5" names them by their position.
std::vector<std::size_t> indices_in(const std::string& message) {
  const std::string marker = "Parameter indices which did not receive grad for rank ";
  const auto at = message.find(marker);
  if (at == std::string::npos) return {};
  const auto colon = message.find(':', at);
  if (colon == std::string::npos) return {};
  std::istringstream numbers(message.substr(colon + 1, message.find('\n', colon) - colon - 1));
  std::vector<std::size_t> indices;
  for (std::size_t index = 0; numbers >> index;) indices.push_back(index);
  return indices;
}

}  // namespace

void DataParallelEngine::Impl::pass_through_sink(const std::vector<at::Tensor*>& outputs) {
  std::vector<at::Tensor*> passed;
  variable_list inputs;
  for (at::Tensor* output : outputs) {
    // A tensor without history must stay the very tensor that the module returned.
    if (!output->defined() || !output->grad_fn()) continue;
    passed.push_back(output);
    inputs.push_back(*output);
  }
  if (inputs.empty()) return;
  const auto callback = c10::make_intrusive<Callback>([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->options.static_graph || self->delay_enqueued) return;
    self->delay_enqueued = true;
    at_end_of_backward([reducer = self->reducer] { reducer->delay_all_reduce(); });
  });
  const variable_list results = Sink::apply(callback, at::TensorList(inputs));
  for (std::size_t i = 0; i < passed.size(); ++i) *passed[i] = results[i];
}

// PyTorch finds out that a parameter got no gradient when the next forward begins. Looking at the
// end of the backward tells it where it happened. A loss may be taken from one output after the
// other, in several backwards, so the look waits until every output has had its gradient.
void DataParallelEngine::Impl::watch_backward(const std::vector<at::Tensor*>& outputs) {
  auto pass = std::make_shared<Pass>();
  for (at::Tensor* output : outputs) {
    // A leaf, such as a parameter that the forward returns, would keep the hook for ever.
    if (!output->defined() || !output->grad_fn()) continue;
    ++pass->outputs_without_gradient;
    const auto seen = std::make_shared<bool>(false);
    output->register_hook([weak = weak_from_this(), pass, seen](const at::Tensor&) {
      const auto self = weak.lock();
      if (self && !std::exchange(*seen, true)) self->on_output_gradient(pass);
    });
  }
}

void DataParallelEngine::Impl::on_output_gradient(const std::shared_ptr<Pass>& pass) {
  if (--pass->outputs_without_gradient > 0) return;
  // The reducer appends its own last step while backward runs; appending again from the first
  // callback puts the look behind it.
  at_end_of_backward([weak = weak_from_this()] {
    at_end_of_backward([weak] {
      if (const auto self = weak.lock()) self->check_finished();
    });
  });
}

void DataParallelEngine::Impl::check_finished() {
  try {
    reducer->check_finalized();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::vector<std::string> unused;
    for (std::size_t index : indices_in(error.what())) unused.push_back(names.at(index));
    if (unused.empty()) {
      throw Error(concat("rank ", group->global_ranks[group->rank],
                         ": backward: ", first_line(error.what())));
    }
    std::string list;
    for (const auto& name : unused) list += (list.empty() ? "" : ", ") + name;
    throw UnusedParameters(
        concat("rank ", group->global_ranks[group->rank], ": backward: ", unused.size(), " of ",
               names.size(), " parameters got no gradient: ", list,
               "; if the forward does not use them in every step, set find_unused_parameters (or "
               "static_graph if it never does), or freeze them"),
        unused);
  }
}

}  // namespace lockstep
