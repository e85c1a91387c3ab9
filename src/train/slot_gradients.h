#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/process_group.h"
#include "train/slots.h"

namespace lockstep {

/// Reduces gradients where a process computes several slots one after the other (a job resumed with
/// fewer processes): each slot's gradients are put aside, then all slots' are added in slot order
/// and divided by their number. The bits are those of DistributedDataParallel with a process per
/// slot and Reduction::ordered.
///
/// It moves every slot's gradients to every process, after backward: correct before fast.
class SlotGradients {
 public:
  SlotGradients(ProcessGroup group, const SlotShare& share, std::vector<at::Tensor> parameters);

  /// Takes the gradients that the parameters have now as those of the next slot of this process and
  /// leaves the parameters without.
  void put_aside();

  /// After all slots of this process: every parameter that has a gradient in any slot gets the mean
  /// over all slots. Every rank calls it.
  void reduce();

  /// Forgets what was put aside.
  void discard() { aside_.clear(); }

 private:
  std::vector<bool> used_anywhere() const;
  at::Tensor contribution(std::size_t slot, std::size_t parameter) const;

  ProcessGroup group_;
  SlotShare share_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<at::Tensor>> aside_;  // by slot of this process, by parameter
};

}  // namespace lockstep
