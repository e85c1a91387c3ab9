#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace at {
class Tensor;
}

namespace lockstep {

class GroupImpl;

enum class ReduceOp { sum, avg, product, min, max, band, bor, bxor };

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  bool async_op = false;
};

/// Operations with a distinguished rank: the source of a broadcast or scatter, the destination of a
/// gather. Ranks are those of the group, which for a subgroup are not those of the world.
struct RootedOptions {
  int root = 0;
  bool async_op = false;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool async_op = false;
};

struct AsyncOptions {
  bool async_op = false;
};

/// How many rows of the first dimension go to and come from each rank; empty: equal parts.
struct AllToAllSingleOptions {
  std::vector<std::int64_t> output_split_sizes = {};
  std::vector<std::int64_t> input_split_sizes = {};
  bool async_op = false;
};

/// `peer` is the other rank. `tag` tells messages between the same two ranks apart.
struct PointToPointOptions {
  int peer = 0;
  int tag = 0;
};

struct MonitoredBarrierOptions {
  std::chrono::milliseconds timeout{0};  // 0: the group's time-out
};

/// An operation under way. With `async_op = false` the operation has ended before the call returns
/// and there is nothing left to wait for.
///
/// The tensors of the operation belong to it until wait() has returned. Copies refer to the same
/// operation. Dropping a Work does not stop the operation.
class Work {
 public:
  Work() = default;
  class Impl;
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  bool is_completed() const;

  /// Blocks until the operation has ended; on CUDA, until the current stream is ordered after it.
  /// Throws PeerLost, Timeout or Aborted.
  void wait();

  /// Of a receive from any rank: who sent. Only after wait().
  int source_rank() const;

 private:
  std::shared_ptr<Impl> impl_;  // null: done
};

/// One message of batch_isend_irecv().
struct P2POp {
  enum class Kind { send, recv };
  Kind kind = Kind::send;
  const at::Tensor* tensor = nullptr;  // must outlive the operation
  int peer = 0;
  int tag = 0;
};

/// Ranks that communicate: the world's own group, or a subgroup made by World::new_group().
///
/// The collectives carry torch.distributed's names and meaning. Every rank of the group calls the
/// same ones in the same order. A handle is cheap to copy; copies are the same group.
///
/// Thread rule: one thread at a time issues operations on a group; abort() may be called from any
/// thread at any time.
class ProcessGroup {
 public:
  ProcessGroup() = default;
  explicit ProcessGroup(std::shared_ptr<GroupImpl> impl) : impl_(std::move(impl)) {}

  /// False on a rank that new_group() left out. Such a handle refuses every operation.
  bool is_member() const { return impl_ != nullptr; }

  int rank() const;
  int size() const;
  const std::vector<int>& global_ranks() const;
  const std::string& name() const;
  const std::string& backend() const;

  Work all_reduce(const at::Tensor& tensor, const AllReduceOptions& options = {});
  Work reduce(const at::Tensor& tensor, const ReduceOptions& options = {});
  Work broadcast(const at::Tensor& tensor, const RootedOptions& options = {});

  /// `outputs` holds size() tensors shaped like `input`.
  Work all_gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                  const AsyncOptions& options = {});
  /// `output` is size() times as long as `input` in the first dimension.
  Work all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                              const AsyncOptions& options = {});
  /// `outputs` is empty except at the root.
  Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
              const RootedOptions& options = {});
  /// `inputs` is empty except at the root.
  Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
               const RootedOptions& options = {});
  Work reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                      const AllReduceOptions& options = {});
  Work reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             const AllReduceOptions& options = {});
  Work all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                  const AsyncOptions& options = {});
  Work all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                         const AllToAllSingleOptions& options = {});

  void send(const at::Tensor& tensor, const PointToPointOptions& options);
  void recv(const at::Tensor& tensor, const PointToPointOptions& options);
  Work isend(const at::Tensor& tensor, const PointToPointOptions& options);
  Work irecv(const at::Tensor& tensor, const PointToPointOptions& options);
  /// Receives from whoever sends first; Work::source_rank() tells who it was. Gloo only.
  Work irecv_any(const at::Tensor& tensor, int tag = 0);
  /// Starts all of them before waiting for any, so that two ranks may send to each other.
  std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations);

  /// A tensor like `like`, of unknown contents, in memory that all ranks of the group can reach:
  /// an all-reduce of it, or of the same part of it on every rank, copies nothing. Every rank calls
  /// it, with tensors of one size. Where ranks are on several machines or cannot share memory it is
  /// an ordinary tensor.
  at::Tensor shared_empty_like(const at::Tensor& like);

  /// Returns when every rank has called it.
  Work barrier(const AsyncOptions& options = {});
  /// A barrier over the store, so that it works on any backend and can say who is missing: throws
  /// Timeout, on every rank that came, naming all ranks that did not.
  void monitored_barrier(const MonitoredBarrierOptions& options = {});

  /// Small values. `value` is read at the root and returned everywhere.
  std::string broadcast_string(const std::string& value, int root = 0);
  std::vector<std::string> all_gather_string(const std::string& value);
  /// The result is empty except at the root.
  std::vector<std::string> gather_string(const std::string& value, int root = 0);
  nlohmann::json broadcast_json(const nlohmann::json& value, int root = 0);
  std::vector<nlohmann::json> all_gather_json(const nlohmann::json& value);
  std::vector<nlohmann::json> gather_json(const nlohmann::json& value, int root = 0);

  /// Ends what is in flight on this group, here and, by closing the connections, at the peers.
  /// Those who wait get Aborted here and PeerLost there. Returns when no tensor is touched any
  /// more. The group cannot be used afterwards. Thread-safe.
  void abort();

  /// For other layers of the library, and the interoperation header lockstep/c10d.h.
  const std::shared_ptr<GroupImpl>& impl() const { return impl_; }

 private:
  GroupImpl& member() const;
  GroupImpl& get(const char* operation) const;  // a member that can still be used

  std::shared_ptr<GroupImpl> impl_;
};

}  // namespace lockstep
