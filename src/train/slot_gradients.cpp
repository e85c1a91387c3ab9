#include "train/slot_gradients.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "comm/ordered_sum.h"
#include "lockstep/error.h"

namespace lockstep {

SlotGradients::SlotGradients(ProcessGroup group, const SlotShare& share,
                             std::vector<at::Tensor> parameters)
    : group_(std::move(group)), share_(share), parameters_(std::move(parameters)) {}

void SlotGradients::put_aside() {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_sparse()) {
      throw InvalidArgument(
          "Trainer: a parameter has a sparse gradient, which a process with several slots cannot "
          "reduce; start as many processes as there are slots");
    }
    gradients.push_back(std::exchange(gradient, at::Tensor()));
  }
  aside_.push_back(std::move(gradients));
}

// Whether each parameter has a gradient in some slot of some process.
std::vector<bool> SlotGradients::used_anywhere() const {
  at::Tensor used = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kInt);
  for (const auto& gradients : aside_) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) used.mutable_data_ptr<int>()[i] = 1;
    }
  }
  if (share_.world_size > 1) {
    at::Tensor shared = used.to(parameters_.front().device());
    ProcessGroup(group_).all_reduce(shared, {.op = ReduceOp::max});
    used = shared.cpu();
  }
  const int* first = used.const_data_ptr<int>();
  return std::vector<bool>(first, first + used.numel());
}

// A process that has a slot less than another still takes part in the exchange, with zeros.
at::Tensor SlotGradients::contribution(std::size_t slot, std::size_t parameter) const {
  if (slot < aside_.size() && aside_[slot][parameter].defined()) {
    return aside_[slot][parameter].contiguous();
  }
  return at::zeros_like(parameters_[parameter], at::MemoryFormat::Contiguous);
}

void SlotGradients::reduce() {
  const at::NoGradGuard no_grad;
  const auto most =
      static_cast<std::size_t>((share_.slots + share_.world_size - 1) / share_.world_size);
  const std::vector<bool> used = used_anywhere();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!used[i]) continue;
    // by_place[p][r]: the p-th slot of rank r.
    std::vector<std::vector<at::Tensor>> by_place(most);
    for (std::size_t place = 0; place < most; ++place) {
      const at::Tensor mine = contribution(place, i);
      if (share_.world_size == 1) {
        by_place[place] = {mine};
        continue;
      }
      for (int rank = 0; rank < share_.world_size; ++rank) {
        by_place[place].push_back(at::empty_like(mine));
      }
      group_.all_gather(by_place[place], mine);
    }
    std::vector<at::Tensor> in_order;
    for (int rank = 0; rank < share_.world_size; ++rank) {
      const int slots = SlotShare::of(share_.slots, rank, share_.world_size).count();
      for (int place = 0; place < slots; ++place) {
        in_order.push_back(by_place[place][rank].view({-1}).cpu());
      }
    }
    const at::Tensor mean = at::empty_like(in_order.front());
    ordered_mean(in_order, share_.slots, mean);
    parameters_[i].mutable_grad() = mean.view(parameters_[i].sizes()).to(parameters_[i].device());
  }
  aside_.clear();
}

}  // namespace lockstep
