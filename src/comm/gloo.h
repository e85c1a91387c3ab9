#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/socket_handles.h"

namespace lockstep {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::string group_name;
  std::vector<int> global_ranks;
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds rendezvous_timeout{};
  bool one_machine = false;  // all ranks are here: use loopback
  int store_port = 0;        // whose connections are not Gloo's
};

struct GlooBackend {
  c10::intrusive_ptr<c10d::Backend> backend;  // for users; under TORCH_DISTRIBUTED_DEBUG=DETAIL it
                                              // checks that ranks call the same operations
  c10::intrusive_ptr<c10d::Backend> bare;     // Gloo itself
  std::shared_ptr<SocketHandles> sockets;
};

/// Connects to all ranks of the group. The only source file that sees Gloo's declarations.
GlooBackend make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options);

}  // namespace lockstep
