#pragma once

#include <functional>
#include <memory>

#include "lockstep/process_group.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Makes each step of a training loop happen wholly or not at all.
///
///     StepTransactions steps(world.group(), model);
///     for (...) {
///       auto step = steps.begin();
///       loss(ddp.forward(input)).backward();
///       step.commit([&] { optimizer.step(); schedule.step(); });
///     }
///
/// Forward and backward change the module's buffers (BatchNorm's running statistics) and its
/// gradients. Until commit() these changes are provisional: if the step is left early, by an
/// exception such as PeerLost or by abort(), the buffers have their old values, the gradients are
/// gone, and the step can be computed again with the same result. Everything that lasts
/// (parameters, optimizer, schedule, counters) is changed in commit() and nowhere else.
///
/// All ranks hold the buffers of slot 0 after a commit. DistributedDataParallel is therefore made
/// with `broadcast_buffers = false`.
///
/// Every rank of the group begins and commits the same steps. One thread.
class StepTransactions {
 public:
  StepTransactions(ProcessGroup group, std::shared_ptr<torch::nn::Module> module);
  StepTransactions(const StepTransactions&) = delete;
  StepTransactions& operator=(const StepTransactions&) = delete;
  ~StepTransactions();

  class [[nodiscard]] Step {
   public:
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    /// Aborts unless committed.
    ~Step();

    /// Where one process computes several slots one after the other: each of them starts from the
    /// buffers as they were committed. Called before each slot but the first.
    void next_slot();

    /// Ends the step: all ranks get the buffers of slot 0, then `apply` changes what lasts. When it
    /// is called, this rank's reductions of the step have completed. `apply` must not communicate,
    /// and should check what it can before its first change: if it throws, the step counts as
    /// committed, because half a change cannot be taken back.
    ///
    /// `agree`, where it is given, runs in between: this rank has all that `apply` needs, and may
    /// communicate once more. If it throws, the step has not been committed.
    void commit(const std::function<void()>& apply, const std::function<void()>& agree = {});

    /// As if the step had not begun.
    void abort();

   private:
    friend class StepTransactions;
    explicit Step(StepTransactions& owner) : owner_(&owner) {}
    StepTransactions* owner_;  // null once it is over
  };

  /// One at a time.
  Step begin();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
