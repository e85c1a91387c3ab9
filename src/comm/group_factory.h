#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/group_impl.h"

namespace lockstep {

struct GroupSpec {
  std::string name;
  std::string backend;
  int rank = 0;  // in the group
  std::vector<int> global_ranks;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds rendezvous_timeout{};
  bool one_machine = false;
  int store_port = 0;
  c10::intrusive_ptr<c10d::Store> backend_store;  // Python's keys
  c10::intrusive_ptr<c10d::Store> own_store;      // this library's keys
  std::shared_ptr<const Peers> peers;
  std::shared_ptr<ProgressMeter> meter = nullptr;
};

/// Connects the backends of a group and puts them behind a guard.
std::shared_ptr<GroupImpl> make_group(const GroupSpec& spec);

/// Whether a backend of this name was compiled in: "gloo", "shm", "hybrid", "mpi", "nccl".
bool has_backend(const std::string& name);

}  // namespace lockstep
