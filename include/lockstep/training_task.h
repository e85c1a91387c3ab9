#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/ddp.h"
#include "lockstep/loader.h"
#include "lockstep/process_group.h"
#include "lockstep/sharded.h"

namespace lockstep {

/// A sum over some of the data and what it is a sum of: sums and counts of all ranks can be added,
/// means cannot.
struct MetricSum {
  at::Tensor sum;  // one number
  double count = 1;
};
using MetricSums = std::map<std::string, MetricSum>;

/// What a loss function returns whose batches weigh differently (sentences of different lengths,
/// masked tokens): the sum of the losses and how many were added. The step then minimizes the mean
/// over everything that all ranks and micro-batches have counted.
struct LossSum {
  at::Tensor sum;  // one number, with its graph
  double count = 0;
  MetricSums metrics = {};  // reported beside the loss; not trained on
  /// `count` as one number on the device, where the host cannot know it: while a CUDA graph is
  /// recorded (TrainerOptions::cuda_graph). Where it is defined, it counts.
  at::Tensor counted = {};
};

/// A model as a loss function sees it: called like the module itself. In training it is the
/// data-parallel or sharded one, in evaluation the module alone.
template <typename M>
class ModelView {
 public:
  ModelView(std::shared_ptr<M> module, DistributedDataParallel<M>* ddp,
            ShardedDataParallel<M>* sharded, std::optional<at::ScalarType> input_type)
      : module_(std::move(module)), ddp_(ddp), sharded_(sharded), input_type_(input_type) {}

  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    if (ddp_ != nullptr) return ddp_->forward(cast(std::forward<Arguments>(arguments))...);
    if (sharded_ != nullptr) return sharded_->forward(cast(std::forward<Arguments>(arguments))...);
    return module_->forward(cast(std::forward<Arguments>(arguments))...);
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// For what does not go through forward(), such as weights that a regularizer reads.
  M& module() { return *module_; }

 private:
  // With bfloat16 weights, inputs in float32 become bfloat16, too.
  template <typename Argument>
  decltype(auto) cast(Argument&& argument) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>) {
      const bool differs = input_type_ && argument.defined() && argument.is_floating_point() &&
                           argument.scalar_type() != *input_type_;
      return differs ? argument.to(*input_type_) : at::Tensor(std::forward<Argument>(argument));
    } else {
      return std::forward<Argument>(argument);
    }
  }

  std::shared_ptr<M> module_;
  DistributedDataParallel<M>* ddp_;
  ShardedDataParallel<M>* sharded_;
  std::optional<at::ScalarType> input_type_;
};

/// A batch that a step is computed from.
struct StepBatch {
  BatchAddress address;
  std::int64_t samples = 0;
};

/// The loss of one micro-batch.
struct TaskLoss {
  at::Tensor value;
  /// What `value` is a sum of; unset: it is the mean over the batch's samples.
  std::optional<double> count = std::nullopt;
  MetricSums metrics = {};
  at::Tensor counted = {};  // LossSum::counted
};

/// What the Trainer asks of a program's model, data and loss, whatever their types are. Programs
/// call Trainer::fit(), which makes one.
class TrainingTask {
 public:
  virtual ~TrainingTask() = default;
  virtual std::shared_ptr<torch::nn::Module> module() const = 0;
  virtual LoaderBase& data() = 0;

  /// Whether the loss function returns sums and counts.
  virtual bool counts() const = 0;

  /// From now on forward() goes through DistributedDataParallel.
  virtual void distribute(World& world, const DistributedDataParallelOptions& options) = 0;
  /// From now on forward() goes to the module itself, and gradients are this process's own.
  virtual void stop_distributing() = 0;
  virtual DataParallelEngine* engine() = 0;  // null unless distributed
  /// For good: forward() goes through ShardedDataParallel.
  virtual void shard(World& world, const ShardedOptions& options) = 0;
  virtual ShardedEngine* sharded() = 0;  // null unless sharded
  /// Where batches are moved to, and what type of numbers the model takes if not the batches' own.
  virtual void set_input(c10::Device device, std::optional<at::ScalarType> type) = 0;

  /// Takes the batches of the next step from data(), for all slots of this process; none at the end
  /// of the epoch.
  virtual std::vector<StepBatch> fetch_step() = 0;
  /// The loss of one of them; `index` counts in what fetch_step() returned.
  virtual TaskLoss forward(std::size_t index) = 0;

  /// For what is recorded: whether one of them has tensors like those of the first, and like those
  /// that are held.
  virtual bool is_like_held(std::size_t index) = 0;
  /// Copies its tensors to where they stay.
  virtual void hold(std::size_t index) = 0;
  virtual void release_held() = 0;
  /// The loss of the one that was held last, from the tensors that stay.
  virtual TaskLoss forward_held() = 0;
};

/// The same for an evaluation.
class EvaluationTask {
 public:
  virtual ~EvaluationTask() = default;
  virtual LoaderBase& data() = 0;
  virtual void set_input(c10::Device device, std::optional<at::ScalarType> type) = 0;
  /// Takes the next batch; nothing at the end of this process's share.
  virtual std::optional<BatchAddress> fetch() = 0;
  /// Of the batch that was fetched.
  virtual MetricSums metrics() = 0;
  /// After the last batch, on every rank: what is no mean, the same on all of them.
  virtual std::map<std::string, double> conclude(ProcessGroup& group) {
    (void)group;
    return {};
  }
};

}  // namespace lockstep
