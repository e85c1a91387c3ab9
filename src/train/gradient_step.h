#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/step_transaction.h"
#include "lockstep/trainer_options.h"
#include "lockstep/training_task.h"
#include "lockstep/world.h"
#include "train/slot_gradients.h"
#include "train/slots.h"
#include "train/step_clock.h"
#include "train/step_graphs.h"

namespace lockstep {

/// The losses and metrics of one slot in one step. They stay on their device until someone asks, so
/// that a GPU is not waited for between micro-batches.
class SlotLoss {
 public:
  struct Sum {
    double sum = 0;
    double count = 0;
  };

  void add(const TaskLoss& loss, std::int64_t samples);
  Sum loss() const { return sum_of(losses_); }
  std::map<std::string, Sum> metrics() const;

 private:
  struct Part {
    at::Tensor value;
    double factor = 1;  // of the value
    double count = 0;
    at::Tensor counted = {};  // in place of `count`
  };
  static Sum sum_of(const std::vector<Part>& parts);

  std::vector<Part> losses_;
  std::map<std::string, std::vector<Part>> metrics_;
};

struct StepGradients {
  std::vector<SlotLoss> slots;    // of this process
  std::int64_t samples = 0;       // of all slots, or of this process's
  bool knows_all_samples = true;  // false for a stream, of which dealing does not tell
  /// The gradients are those of a sum and have yet to be divided by (what all slots counted) /
  /// slots.
  bool divide_by_count = false;
};

/// Computes the gradients of one step: forward and backward for every slot of this process and
/// every micro-batch. Afterwards each parameter's gradient is the mean over all slots.
class GradientStep {
 public:
  /// `formed_again`: the ranks hold the same parameters, and know it.
  /// `compression` may be null, and so may `graphs`, which outlive this.
  GradientStep(World& world, TrainingTask& task, const TrainerOptions& options,
               const SlotShare& share, StepClock& clock,
               const std::shared_ptr<GradientCompression>& compression, StepGraphs* graphs,
               bool formed_again);

  /// How the loss is changed before backward, for float16; by default not at all.
  using ScaleLoss = std::function<at::Tensor(const at::Tensor&)>;

  StepGradients compute(StepTransactions::Step& transaction, const std::vector<StepBatch>& batches,
                        std::int64_t step, const ScaleLoss& scale_loss);

  /// Computes this process's own gradients again, without reducing them, and names the first
  /// parameter whose gradient is not finite; nothing when all are. `batches` must be the same.
  std::optional<std::string> find_non_finite(StepTransactions::Step& transaction,
                                             const std::vector<StepBatch>& batches,
                                             std::int64_t step, const ScaleLoss& scale_loss);

 private:
  struct Weights {
    bool even = true;          // every batch of the step has as many samples
    std::int64_t samples = 0;  // of all slots
    std::int64_t micro_batches = 1;
    bool operator==(const Weights&) const = default;
  };
  /// Where a micro-batch stands in its step: the first sets gradients, others add to them, and the
  /// last reduces them.
  struct Place {
    bool first = true;
    bool last = true;
  };
  /// What the work on a micro-batch left when it was recorded.
  struct Recorded {
    TaskLoss loss;
    std::vector<at::Tensor> gradients;
  };
  Weights weights_of(const std::vector<StepBatch>& batches) const;
  at::Tensor objective(const TaskLoss& loss, const StepBatch& batch, const Weights& weights) const;
  void backward_of_slot(const std::vector<StepBatch>& batches, std::size_t first, std::size_t last,
                        std::int64_t step, const Weights& weights, const ScaleLoss& scale_loss,
                        bool reduce, SlotLoss& total);
  TaskLoss forward(const std::function<TaskLoss()>& forward) const;
  StepKind kind_of(const std::vector<StepBatch>& batches, const Weights& weights);
  TaskLoss replay(std::size_t index, const StepBatch& batch, const Weights& weights,
                  const Place& place);
  void watch_counts(const TaskLoss& loss);
  void expect_on_device(TaskLoss& loss) const;
  void await_reduced(std::int64_t step);
  void distribute(const std::shared_ptr<GradientCompression>& compression, bool formed_again);
  std::optional<std::chrono::nanoseconds> reduced_since(bool reduced) const;
  std::size_t end_of_slot(const std::vector<StepBatch>& batches, std::size_t first) const;
  void zero_grad();

  World& world_;
  TrainingTask& task_;
  const TrainerOptions& options_;
  SlotShare share_;
  StepClock& clock_;
  bool sized_;        // a dataset, whose dealing is known beforehand
  bool counts_;       // the weight of a batch is known only after its forward
  bool dealt_alike_;  // in each micro-batch all slots have as many samples
  std::vector<NamedParameter> parameters_;
  std::unique_ptr<SlotGradients> slot_gradients_;  // where a process has several slots
  StepGraphs* graphs_;                             // null: nothing is recorded
  std::optional<Weights> usual_;                   // of the steps that are recorded
  int unlike_steps_ = 0;  // in a row, of that size and with tensors of other forms
  std::map<std::string, Recorded> recorded_;
  std::map<std::string, double> counts_seen_;  // by metric; "" is the loss
};

}  // namespace lockstep
