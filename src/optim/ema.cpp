#include "lockstep/ema.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>

#include "lockstep/error.h"
#include "optim/module_tensors.h"
#include "optim/tensor_groups.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<NamedParameter>& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const NamedParameter& item : named) {
    tensors.push_back(item.tensor.detach());
  }
  return tensors;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone());
  }
  return copies;
}

}  // namespace

Ema::Ema(const torch::nn::Module& module, const EmaOptions& options)
    : Ema(all_parameters(module), all_buffers(module), options) {}

Ema::Ema(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers,
         const EmaOptions& options)
    : options_(options), live_(std::move(parameters)), parameter_count_(live_.size()) {
  if (!(options.decay >= 0 && options.decay <= 1)) {
    throw InvalidArgument(concat("Ema: decay is ", options.decay, "; it must be in [0, 1]"));
  }
  live_.insert(live_.end(), std::make_move_iterator(buffers.begin()),
               std::make_move_iterator(buffers.end()));
  const at::NoGradGuard no_grad;
  average_ = clones(tensors_of(live_));
}

void Ema::update() {
  if (swapped_) {
    throw InvalidArgument("Ema: update() while the model holds the average; end Swapped first");
  }
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> live = tensors_of(live_);
  const auto split = static_cast<std::ptrdiff_t>(parameter_count_);
  if (updates_ == 0) {
    at::_foreach_copy_(average_, live);
    updates_ = 1;
    return;
  }
  const auto count = static_cast<double>(updates_);
  const double decay =
      options_.warmup ? std::min(options_.decay, (1 + count) / (10 + count)) : options_.decay;
  const std::vector<at::Tensor> parameters(live.begin(), live.begin() + split);
  for (const auto& positions : group_by_device_and_dtype(parameters)) {
    at::_foreach_lerp_(select(average_, positions), select(parameters, positions), 1 - decay);
  }
  if (parameter_count_ < live.size()) {
    at::_foreach_copy_(at::TensorList(average_).slice(parameter_count_),
                       at::TensorList(live).slice(parameter_count_));
  }
  ++updates_;
}

Ema::Swapped::Swapped(Ema& ema) : ema_(ema) {
  if (ema.swapped_) {
    throw InvalidArgument("Ema: the model holds the average already; Swapped does not nest");
  }
  const at::NoGradGuard no_grad;
  // Values move, not tensors: gradients, optimizer state and buckets refer to the model's own.
  const std::vector<at::Tensor> live = tensors_of(ema.live_);
  own_ = clones(live);
  at::_foreach_copy_(live, ema.average_);
  ema.swapped_ = true;
}

Ema::Swapped::~Swapped() {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(tensors_of(ema_.live_), own_);
  ema_.swapped_ = false;
}

void Ema::copy_to_model() {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(tensors_of(live_), average_);
}

State Ema::state() const {
  State result;
  for (std::size_t position = 0; position < live_.size(); ++position) {
    result.tensors[live_[position].name] = average_[position];
  }
  result.values["updates"] = updates_;
  return result;
}

void Ema::load_state(const State& state) {
  const at::NoGradGuard no_grad;
  if (!state.values.contains("updates") || !state.values.at("updates").is_number_integer()) {
    throw InvalidArgument("Ema: the state does not say how many updates it has seen");
  }
  if (state.tensors.size() != live_.size()) {
    throw InvalidArgument(
        concat("Ema: the state has ", state.tensors.size(), " tensors, the model ", live_.size()));
  }
  std::vector<at::Tensor> saved;
  for (std::size_t position = 0; position < live_.size(); ++position) {
    const auto found = state.tensors.find(live_[position].name);
    if (found == state.tensors.end() || found->second.sizes() != average_[position].sizes()) {
      throw InvalidArgument(concat("Ema: the state has no ", live_[position].name, " of shape ",
                                   average_[position].sizes()));
    }
    saved.push_back(found->second);
  }
  at::_foreach_copy_(average_, saved);
  updates_ = state.values.at("updates").get<std::int64_t>();
}

}  // namespace lockstep
