#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/group_guard.h"
#include "comm/shm_channel.h"
#include "comm/socket_handles.h"
#include "lockstep/process_group.h"
#include "shm/shared_block.h"

namespace lockstep {

/// What a ProcessGroup handle refers to.
class GroupImpl {
 public:
  std::string name;     // Python's: "0" for the world's group, then "1", "2", ...
  std::string backend;  // "gloo", "shm", "hybrid", "mpi", "nccl", "cpu:gloo,cuda:nccl"
  int rank = 0;
  std::vector<int> global_ranks;
  std::chrono::milliseconds timeout{};

  std::shared_ptr<GroupGuard> guard;
  std::shared_ptr<const Peers> peers;
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // its backends are guarded ones
  c10::intrusive_ptr<c10d::Backend> gloo;        // the bare one, or MPI's; null with NCCL alone
  c10::intrusive_ptr<c10d::Backend> nccl;        // likewise
  std::shared_ptr<SocketHandles> sockets;        // Gloo's connections
  std::shared_ptr<ShmChannel> shm;               // the ordered reduction's way, where there is one
  // Where its ranks have tensors that all of them can reach.
  std::shared_ptr<SharedBlocks> blocks = std::make_shared<SharedBlocks>();
  c10::intrusive_ptr<c10d::Store> store;  // for this library's own keys in this group

  int size() const { return static_cast<int>(global_ranks.size()); }

  /// Whether tensors of this device travel over Gloo, or through shared memory.
  bool serves_with_gloo(c10::Device device) const { return backend_of(device) == "gloo"; }
  bool serves_with_shm(c10::Device device) const {
    return backend_of(device) == "shm" || backend_of(device) == "hybrid";
  }
  /// Either of them: the processor does the work, and Gloo is there.
  bool serves_on_host(c10::Device device) const { return backend_of(device) != "nccl"; }
  std::string backend_of(c10::Device device) const {
    return group->getBackend(device.type())->getBackendName();
  }

  /// Where the library's own small messages live: with NCCL alone, on the GPU.
  c10::Device small_device() const {
    return gloo ? c10::Device(c10::DeviceType::CPU) : c10::Device(c10::DeviceType::CUDA);
  }

  /// Leaves the group: its connections end even if someone still holds a handle.
  void leave() {
    const bool intact = guard->retire();
    if (intact && nccl) nccl->shutdown();
    if (sockets) sockets->end();
    shm->poison();
    if (!intact) guard->abort();
    // Its threads would be waited for. They hold what they use, and end with the process.
    if (gloo && guard->is_stuck()) new c10::intrusive_ptr<c10d::Backend>(gloo);
    group.reset();
    gloo.reset();
    nccl.reset();
    store.reset();
  }

  /// Numbers the uses of the store in this group. Ranks count alike because they call the same
  /// operations in the same order.
  std::atomic<std::int64_t> store_sequence{0};

  /// Numbers the reductions that share Gloo's point-to-point channel.
  std::atomic<std::int64_t> ordered_sequence{0};
};

/// Collectives of c10d take lists of tensors by non-const reference.
inline std::vector<at::Tensor> one(const at::Tensor& tensor) {
  return {tensor};
}

}  // namespace lockstep
