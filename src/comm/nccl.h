#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  std::string group_name;
  std::vector<int> global_ranks;
  std::chrono::milliseconds timeout{};
};

/// Throws InvalidArgument in a build without CUDA.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const NcclOptions& options);

bool built_with_nccl();

}  // namespace lockstep
