#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "ddp/gradient_homes.h"
#include "ddp/module_walk.h"
#include "lockstep/compression.h"
#include "lockstep/ddp.h"
#include "shm/serial_queue.h"

namespace lockstep {

/// Buffers and weights travel in pieces of this size, as in Python.
inline constexpr std::size_t kBroadcastBytes = 250 * 1024 * 1024;

/// What one DistributedDataParallel is made of. The parts of its work stand in engine.cpp (set-up,
/// forward), verify.cpp, backward_watch.cpp (the end of backward), comm_hooks.cpp,
/// compressed_buckets.cpp and join.cpp.
struct DataParallelEngine::Impl : std::enable_shared_from_this<DataParallelEngine::Impl> {
  ProcessGroup handle;
  std::shared_ptr<GroupImpl> group;
  std::shared_ptr<torch::nn::Module> module;  // null for a list of tensors
  DistributedDataParallelOptions options;
  std::set<std::string> ignored;

  std::vector<at::Tensor> parameters;  // those that require gradients
  std::vector<std::string> names;
  std::vector<bool> sparse;
  std::vector<at::Tensor> other_parameters;  // frozen or ignored: not reduced

  Reduction reduction = Reduction::native;
  std::unique_ptr<OrderedReduction> ordered;  // set when reduction is ordered
  CommHook hook = CommHook::allreduce;
  CommHookFunction user_hook;
  std::shared_ptr<GradientCompression> compression;
  std::unique_ptr<SerialQueue> hook_queue;  // where the compression works beside backward
  bool hook_registered = false;             // with the reducer, which takes one
  bool hook_chosen = false;                 // by the user
  std::optional<std::chrono::steady_clock::time_point> last_bucket_at;

  bool require_backward_grad_sync = true;
  bool require_forward_param_sync = true;
  bool delay_enqueued = false;  // static graph: the first backward reduces at its end

  /// While join() runs.
  struct Joining {
    bool divide_by_initial_world_size = true;
    bool throw_on_early_termination = false;
  };
  std::optional<Joining> joining;

  /// One forward whose backward will be watched.
  struct Pass {
    std::size_t outputs_without_gradient = 0;
  };

  // The logger holds the reducer and must go first.
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  std::unique_ptr<GradientHomes> homes;  // in the reducer's buckets

  void set_up();
  Reduction chosen_reduction() const;
  bool all_ranks_are_lockstep() const;
  std::vector<std::string> description() const;
  void verify_across_ranks();
  void broadcast_state(int source, bool with_buffers);
  std::vector<at::Tensor> buffers() const;
  at::Device device() const { return parameters.front().device(); }

  void share_buckets();
  void rebuild_buckets();
  void open_homes();
  void add_up_in_buckets();
  void sync_buffers(int source);
  bool syncs_buffers() const;

  void watch_backward(const std::vector<at::Tensor*>& outputs);
  void pass_through_sink(const std::vector<at::Tensor*>& outputs);
  void on_output_gradient(const std::shared_ptr<Pass>& pass);
  void check_finished();

  void register_hook_with_reducer();
  c10::intrusive_ptr<c10::ivalue::Future> run_hook(c10d::GradBucket& bucket);
  c10::intrusive_ptr<c10::ivalue::Future> run_compression(c10d::GradBucket& bucket);
  void mean_now(const at::Tensor& tensor);
  at::Tensor sparse_mean(const at::Tensor& tensor);

  int agree_on_rank(bool candidate);
  void announce_presence();
  void set_mean_over(double ranks);
  void announce_sync(bool sync);
  void shadow_one_step();
};

}  // namespace lockstep
