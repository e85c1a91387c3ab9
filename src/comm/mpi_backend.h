#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/mpi_thread.h"

namespace lockstep {

/// Collectives and messages of CPU tensors over MPI, for processes that mpirun has started.
///
/// Operations are MPI's non-blocking ones, begun in the order of the calls by one thread of the
/// process: several can be in flight, and wait() costs a processor little. Reductions are in
/// MPI's order; float16 and bfloat16 are reduced in float32. Tensors that are not contiguous are
/// copied. Sparse ones are refused.
class MpiBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Spec {
    int rank = 0;
    std::vector<int> global_ranks;
    int number = 0;  // of the group; the same on every rank
    std::chrono::milliseconds timeout{};
  };
  explicit MpiBackend(const Spec& spec);

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override { MpiThread::get().give_up(group_); }
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
  /// One operation of MPI, and what follows it on the thread that calls MPI.
  struct Part {
    LockstepMpiOperation operation{};
    std::function<void()> finish;
  };
  LockstepMpiOperation operation(LockstepMpiKind kind) const;
  Part reduction(LockstepMpiKind kind, const at::Tensor& tensor, const c10d::ReduceOp& op,
                 int root) const;
  Part gathering(LockstepMpiKind kind, const Tensors& outputs, const at::Tensor& input,
                 int root) const;
  Part scattered_reduction(const at::Tensor& output, const Tensors& inputs,
                           const c10d::ReduceOp& op) const;
  Part exchange(const Tensors& outputs, const Tensors& inputs) const;
  Part message(LockstepMpiKind kind, const at::Tensor& tensor, int peer, int tag) const;
  WorkPtr run(c10d::OpType type, const char* title, Tensors outputs, std::vector<Part> parts);

  void* group_;
  std::chrono::milliseconds timeout_;
  uint64_t sequence_ = 0;
};

}  // namespace lockstep
