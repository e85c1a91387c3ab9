#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace lockstep {

struct MpiOptions {
  int rank = 0;  // in the group
  std::string group_name;
  std::vector<int> global_ranks;
  std::chrono::milliseconds timeout{};
};

/// Throws InvalidArgument where there is no MPI, and in processes that mpirun has not started, or
/// not as these ranks.
c10::intrusive_ptr<c10d::Backend> make_mpi(const MpiOptions& options);

}  // namespace lockstep
