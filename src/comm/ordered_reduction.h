#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/ivalue.h>

#include "comm/group_impl.h"

namespace lockstep {

/// The mean of every rank's tensor, added in rank order whatever the backend, the sizes of the
/// tensors and their number. See docs/determinism.md.
///
/// Ranks of one machine share memory for it, and one of each machine talks to the others'
/// (GroupTeam). Where that is not to be had, all use Gloo's point-to-point messages: small tensors
/// are exchanged whole and every rank adds by itself; of a large one each rank adds a shard and
/// hands it out. Which way it is, the ranks of a group agree on at its first reduction.
///
/// Reductions run one after the other on a thread of their own, so that backward goes on meanwhile.
/// Messages carry a tag per reduction, so the group's collectives can run at the same time.
///
/// A job has slots: logical ranks, whose number does not change when processes do. Today slot s is
/// computed by rank s.
///
/// One thread calls it, in the same order on every rank.
class OrderedReduction {
 public:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  explicit OrderedReduction(std::shared_ptr<GroupImpl> group);
  ~OrderedReduction();

  enum class Urgency {
    overlap,   // there is more to compute: work in the background
    wait_now,  // the caller will wait for it next: spare the change of threads
  };

  /// In place. `tensor` is dense and contiguous; the future comes to hold it.
  FuturePtr mean(const at::Tensor& tensor, Urgency urgency);

  /// Of sparse tensors: every rank gets the coalesced sparse mean.
  at::Tensor sparse_mean(const at::Tensor& tensor);

  /// Ranks that take part in the mean; all of them unless some have run out of input.
  void set_divisor(double divisor) { divisor_ = divisor; }

 private:
  /// Memory to receive into, kept from one reduction to the next: fresh pages cost as much as the
  /// addition itself.
  class Scratch {
   public:
    /// A tensor of this length and type; what the last call with the same index returned is given
    /// up.
    at::Tensor like(const at::Tensor& tensor, int index);

   private:
    std::vector<at::Tensor> buffers_;
  };

  struct Call {
    int tag = 0;
    std::int64_t ticket = 0;
    double divisor = 1;
    Urgency urgency{};
  };

  void reduce_on_cpu(const at::Tensor& flat, const Call& call, Scratch& scratch);
  void exchange_in_turn(const at::Tensor& flat, int tag, double divisor, Scratch& scratch);
  void exchange_all(const at::Tensor& flat, int tag, double divisor, Scratch& scratch);
  void exchange_shards(const at::Tensor& flat, int tag, double divisor, Scratch& scratch);
  FuturePtr mean_on_device(const at::Tensor& tensor);

  void enqueue(std::function<void()> task);
  void run_tasks();
  int next_tag();

  std::shared_ptr<GroupImpl> group_;
  // Of its own, because the world may be left while a reduction is under way.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  double divisor_;
  Scratch own_scratch_, thread_scratch_;  // of the caller's thread and of the one below

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // started with the first task
};

}  // namespace lockstep
