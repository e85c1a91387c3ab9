#include "comm/guarded_backend.h"

#include <optional>
#include <utility>

namespace lockstep {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// An operation of the inner backend whose failure is told in this library's errors.
class GuardedWork : public c10d::Work {
 public:
  /// `ended`: set by the guard when the operation has ended; null where nobody tells.
  GuardedWork(std::shared_ptr<GroupGuard> guard, const char* operation, WorkPtr inner,
              std::shared_ptr<bool> ended)
      : Work(guard->options().rank, inner->retrieveOpType()),
        guard_(std::move(guard)),
        operation_(operation),
        inner_(std::move(inner)),
        ended_(std::move(ended)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
  float getDuration() const override { return inner_->getDuration(); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }

  void synchronize() override {
    guarded([&] { inner_->synchronize(); });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (ended_ && timeout == kNoTimeout && !guard_->await_end(*ended_)) {
      guard_->check_usable(operation_);
    }
    bool ended = false;
    std::optional<GroupGuard::Waiting> waiting;
    if (!ended_) waiting.emplace(*guard_, operation_);
    guarded([&] { ended = inner_->wait(timeout); });
    // An aborted point-to-point operation says so by returning false.
    if (!ended) guard_->check_usable(operation_);
    return ended;
  }

  FuturePtr getFuture() override {
    const FuturePtr future = inner_->getFuture();
    // NCCL's say when an operation is queued, and bear no errors. A callback would take one of the
    // streams that all share, which is then recorded with the rest where a CUDA graph is.
    if (!ended_) return future;
    return future->then(
        [guard = guard_, operation = operation_](c10::ivalue::Future& done) -> c10::IValue {
          if (done.hasError()) guard->rethrow(done.exception_ptr(), operation);
          return done.value();
        },
        future->elementType());
  }

 private:
  template <typename Call>
  void guarded(Call call) {
    try {
      call();
    } catch (...) {
      guard_->rethrow(std::current_exception(), operation_);
    }
  }

  std::shared_ptr<GroupGuard> guard_;
  const char* operation_;
  WorkPtr inner_;
  std::shared_ptr<bool> ended_;
};

// Messages are part of their Work, and nobody tells when they have ended.
bool is_message(std::string_view operation) {
  return operation == "send" || operation == "recv" || operation == "recv_any";
}

// Gloo's reduce-scatters are an all-reduce behind a Work without a future.
bool has_future_in_gloo(std::string_view operation) {
  return !is_message(operation) && !operation.starts_with("reduce_scatter");
}

}  // namespace

GuardedBackend::GuardedBackend(c10::intrusive_ptr<c10d::Backend> inner,
                               std::shared_ptr<GroupGuard> guard)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      guard_(std::move(guard)),
      gloo_(inner_->getBackendName() == "gloo"),
      shm_(inner_->getBackendName() == "shm" || inner_->getBackendName() == "hybrid" ||
           inner_->getBackendName() == "mpi") {}

template <typename Call>
WorkPtr GuardedBackend::run(const char* operation, Call call) {
  guard_->check_usable(operation);
  // NCCL's futures complete when the operation is queued, and its abort waits by itself.
  const bool counted = (gloo_ && has_future_in_gloo(operation)) || (shm_ && !is_message(operation));
  if (counted) guard_->operation_began(operation);
  WorkPtr work;
  try {
    work = call();
  } catch (...) {
    if (counted) guard_->operation_ended();
    guard_->rethrow(std::current_exception(), operation);
  }
  if (!work) return work;  // between startCoalescing and endCoalescing
  std::shared_ptr<bool> ended;
  if (counted) {
    ended = std::make_shared<bool>(false);
    work->getFuture()->addCallback(
        [guard = guard_, ended](c10::ivalue::Future&) { guard->operation_ended(ended.get()); });
  }
  return c10::make_intrusive<GuardedWork>(guard_, operation, std::move(work), std::move(ended));
}

WorkPtr GuardedBackend::endCoalescing() {
  return run("coalesced", [&] { return inner_->endCoalescing(); });
}

WorkPtr GuardedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run("broadcast", [&] { return inner_->broadcast(tensors, options); });
}

WorkPtr GuardedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run("all_reduce", [&] { return inner_->allreduce(tensors, options); });
}

WorkPtr GuardedBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return run("all_reduce", [&] { return inner_->allreduce_sparse(tensors, options); });
}

WorkPtr GuardedBackend::allreduce_coalesced(Tensors& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  return run("all_reduce_coalesced", [&] { return inner_->allreduce_coalesced(tensors, options); });
}

WorkPtr GuardedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run("reduce", [&] { return inner_->reduce(tensors, options); });
}

WorkPtr GuardedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) {
  return run("all_gather", [&] { return inner_->allgather(outputs, inputs, options); });
}

WorkPtr GuardedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  return run("all_gather_into_tensor",
             [&] { return inner_->_allgather_base(output, input, options); });
}

WorkPtr GuardedBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  return run("all_gather_coalesced",
             [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
}

WorkPtr GuardedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return run("all_gather_into_tensor_coalesced",
             [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
}

WorkPtr GuardedBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::GatherOptions& options) {
  return run("gather", [&] { return inner_->gather(outputs, inputs, options); });
}

WorkPtr GuardedBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                const c10d::ScatterOptions& options) {
  return run("scatter", [&] { return inner_->scatter(outputs, inputs, options); });
}

WorkPtr GuardedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  return run("reduce_scatter", [&] { return inner_->reduce_scatter(outputs, inputs, options); });
}

WorkPtr GuardedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  return run("reduce_scatter_tensor",
             [&] { return inner_->_reduce_scatter_base(output, input, options); });
}

WorkPtr GuardedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  return run("reduce_scatter_tensor_coalesced",
             [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

WorkPtr GuardedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                      std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits,
                                      const c10d::AllToAllOptions& options) {
  return run("all_to_all_single", [&] {
    return inner_->alltoall_base(output, input, output_splits, input_splits, options);
  });
}

WorkPtr GuardedBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                 const c10d::AllToAllOptions& options) {
  return run("all_to_all", [&] { return inner_->alltoall(outputs, inputs, options); });
}

WorkPtr GuardedBackend::send(Tensors& tensors, int peer, int tag) {
  return run("send", [&] { return inner_->send(tensors, peer, tag); });
}

WorkPtr GuardedBackend::recv(Tensors& tensors, int peer, int tag) {
  return run("recv", [&] { return inner_->recv(tensors, peer, tag); });
}

WorkPtr GuardedBackend::recvAnysource(Tensors& tensors, int tag) {
  return run("recv_any", [&] { return inner_->recvAnysource(tensors, tag); });
}

WorkPtr GuardedBackend::barrier(const c10d::BarrierOptions& options) {
  return run("barrier", [&] { return inner_->barrier(options); });
}

}  // namespace lockstep
