#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optimizer.h"

namespace lockstep {

struct StepInBackwardOptions {
  /// An update begins whenever gradients of so many bytes are complete; 0: with each gradient.
  std::int64_t update_bytes = std::int64_t{16} << 20;
  /// As StepArguments::lr.
  std::vector<at::Tensor> lr = {};
};

/// Backward and the optimizer's step in one: weights are updated as soon as their gradients are
/// complete, while backward goes on below them.
///
///     lockstep::StepInBackward updates(optimizer);
///     updates.backward(loss);  // in place of loss.backward() and optimizer.step()
///
/// Weights and the optimizer's state get the bits of the step afterwards, because an update looks
/// at one element at a time. On a GPU updates, which wait for memory, run beside backward's
/// products, which wait for arithmetic, and may be recorded in a graph. On the CPU a gradient is
/// freed with its update, so that there are few at any time. Afterwards parameters have no
/// gradients.
///
/// Not for what must see all gradients before the first weight changes: clipping, loss scaling,
/// several backwards for a step, several ranks (gradients of this rank alone are complete; ranks
/// that agree on each update need a step of its own). Not for models that read a weight in backward
/// behind autograd's back either, through detach() for example.
///
/// Thread rule: one thread, and the optimizer outlives it.
class StepInBackward {
 public:
  /// Throws InvalidArgument where someone else has a hook on a parameter's gradient.
  explicit StepInBackward(Optimizer& optimizer, StepInBackwardOptions options = {});
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  /// Throws InvalidArgument, before anything changes, where a parameter has a gradient already,
  /// belongs to DistributedDataParallel, or is on another device than the others. Throws what
  /// backward and the step throw, too; some of the weights are then a step ahead of the others, so
  /// that a run has to go back to a snapshot. Gradients are gone then, and the next call begins
  /// anew.
  void backward(const at::Tensor& loss);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
