#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/group_impl.h"
#include "comm/group_team.h"
#include "shm/serial_queue.h"

namespace lockstep {

/// Collectives of CPU tensors through memory that ranks of a machine share: "shm" where there is
/// one machine, "hybrid" where one rank of each talks to the others' over Gloo.
///
/// Operations run in the order in which they were called: those that the caller waits for at once
/// (asyncOp = false) on its own thread, the others on one thread of the backend, so that several
/// can be in flight. Reductions are in rank order whatever the sizes (docs/determinism.md). Tensors
/// that are not contiguous are copied. Messages between two ranks of a machine go through memory,
/// too, independently of all that. Sparse tensors go over Gloo, as do messages to other machines.
class ShmBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ShmBackend(std::shared_ptr<GroupTeam> team, c10::intrusive_ptr<c10d::Backend> gloo,
             std::chrono::milliseconds timeout);

  const std::string getBackendName() const override {
    return team_->one_machine() ? "shm" : "hybrid";
  }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override { team_->poison(); }
  void shutdown() override {}

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  using Body = std::function<void(GroupTeam&)>;

  struct Operation {
    c10d::OpType type{};
    const char* title = "";  // for profilers
    bool async = true;       // the caller does not wait for it at once
  };
  WorkPtr run(const Operation& operation, Tensors outputs, Body body);

  std::shared_ptr<GroupTeam> team_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::atomic<std::chrono::milliseconds> timeout_;  // of messages
  uint64_t sequence_ = 0;
  SerialQueue queue_;
};

/// Lets the CPU tensors of a group whose backend is "shm", "hybrid" or "auto" travel through shared
/// memory, and names the backend by what was possible. Where ranks cannot share any memory, they
/// stay with Gloo; the first rank says why in one line, if it was asked for by name.
///
/// Every rank calls it, when all know who the others are, before the first operation. Throws what
/// Gloo throws.
void attach_team(GroupImpl& group);

}  // namespace lockstep
