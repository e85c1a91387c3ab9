#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/error.h"
#include "lockstep/tensor_walk.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

using Tensors = std::vector<at::Tensor>;

/// A piece of a model that is a chain: it gets the tensors that the piece before gave.
struct ModelPart {
  std::shared_ptr<torch::nn::Module> module;  // null: it has nothing to train
  std::function<Tensors(const Tensors&)> forward;
};

namespace detail {

template <typename Output>
Tensors tensors_of(Output output) {
  Tensors tensors;
  auto note = [&](at::Tensor& tensor) { tensors.push_back(tensor); };
  walk_tensors<true>(output, note);
  return tensors;
}

template <typename M, typename... Inputs>
concept ForwardTakes = requires(M& module, const Inputs&... inputs) {
  module.forward(inputs...);
};

template <typename M>
Tensors forward_part(M& module, const Tensors& x) {
  using T = at::Tensor;
  constexpr bool one_by_one = ForwardTakes<M, T> || ForwardTakes<M, T, T> ||
                              ForwardTakes<M, T, T, T> || ForwardTakes<M, T, T, T, T>;
  if constexpr (!one_by_one && ForwardTakes<M, Tensors>) {
    return tensors_of(module.forward(x));
  } else {
    if constexpr (ForwardTakes<M, T>) {
      if (x.size() == 1) return tensors_of(module.forward(x[0]));
    }
    if constexpr (ForwardTakes<M, T, T>) {
      if (x.size() == 2) return tensors_of(module.forward(x[0], x[1]));
    }
    if constexpr (ForwardTakes<M, T, T, T>) {
      if (x.size() == 3) return tensors_of(module.forward(x[0], x[1], x[2]));
    }
    if constexpr (ForwardTakes<M, T, T, T, T>) {
      if (x.size() == 4) return tensors_of(module.forward(x[0], x[1], x[2], x[3]));
    }
    throw InvalidArgument(concat("model_part: the module's forward does not take ", x.size(),
                                 " tensors, which the part before gives"));
  }
}

// torch::nn::Linear holds a torch::nn::LinearImpl.
template <typename Holder>
concept HoldsModule = requires(const Holder& holder) {
  holder.ptr()->parameters();
};

}  // namespace detail

/// A module whose forward takes up to four tensors, or a vector of them, and returns tensors in any
/// shape that lockstep/tensor_walk.h knows.
template <typename M>
ModelPart model_part(std::shared_ptr<M> module) {
  auto forward = [module](const Tensors& x) { return detail::forward_part(*module, x); };
  return {.module = std::move(module), .forward = std::move(forward)};
}
template <detail::HoldsModule Holder>
ModelPart model_part(const Holder& module) {
  return model_part(module.ptr());
}

/// With another forward: `forward(module, tensors)` is called.
template <typename M, typename Forward>
ModelPart model_part(std::shared_ptr<M> module, Forward forward) {
  auto call = [module, forward = std::move(forward)](const Tensors& x) {
    return detail::tensors_of(forward(*module, x));
  };
  return {.module = std::move(module), .forward = std::move(call)};
}
template <detail::HoldsModule Holder, typename Forward>
ModelPart model_part(const Holder& module, Forward forward) {
  return model_part(module.ptr(), std::move(forward));
}

/// Without a module: a function from tensors to tensors.
inline ModelPart model_function(std::function<Tensors(const Tensors&)> forward) {
  return {.module = nullptr, .forward = std::move(forward)};
}

}  // namespace lockstep
