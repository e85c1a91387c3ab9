#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "lockstep/ddp.h"

namespace lockstep {

struct ReducerSpec {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<bool> sparse_gradients;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  DistributedDataParallelOptions options;
};

/// PyTorch's gradient engine, set up as Python's DistributedDataParallel sets it up. The only
/// source file that knows how its constructor looks, which changes between releases of PyTorch.
std::shared_ptr<c10d::Reducer> make_reducer(const ReducerSpec& spec);

}  // namespace lockstep
