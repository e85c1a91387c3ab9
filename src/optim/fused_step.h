#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/optimizer.h"

namespace lockstep {

/// One parameter's tensors by Python's names: "exp_avg", "momentum_buffer" and so on.
using ParameterState = std::map<std::string, at::Tensor>;
using StateByName = std::map<std::string, ParameterState>;

/// What one call of a kernel takes: parameters of one group, device and dtype.
struct FusedBatch {
  const OptimizerOptions* options = nullptr;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  /// In the order of state_keys(); empty where SGD has no momentum.
  std::vector<std::vector<at::Tensor>> state;
  bool first_step = false;  // SGD: momentum buffers are about to be filled for the first time
  StepArguments arguments;  // on the batch's device; `lr` holds one tensor or none

  /// Tensors that the kernel cannot work on themselves: gradients whose layout in memory is not
  /// that of their parameter (the kernels pair elements by address), and others (see
  /// plan_step.cpp). It gets a copy, which goes back afterwards.
  struct Copied {
    at::Tensor original;
    at::Tensor copy;
  };
  std::vector<Copied> copied = {};
};

/// A step that has been checked but not begun.
struct StepPlan {
  std::vector<FusedBatch> batches;
  StateByName created;  // state of parameters that had none
};

/// Checks everything and allocates what is missing; changes no parameter and no state. Throws
/// InvalidArgument.
StepPlan plan_step(const std::vector<Optimizer::Group>& groups, const StateByName& state,
                   const StepArguments& arguments);

/// Changes parameters and state.
void run_step(const StepPlan& plan);

}  // namespace lockstep
