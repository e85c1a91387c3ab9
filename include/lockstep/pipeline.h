#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/model_part.h"
#include "lockstep/optimizer.h"
#include "lockstep/pipeline_schedule.h"
#include "lockstep/process_group.h"
#include "lockstep/state.h"
#include "lockstep/tensor_range.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// One entry of the list that makes a model. `make` is called only on the rank that has the part,
/// with random numbers that depend on the seed and the part's place in the list: its weights are
/// the same whichever rank makes it.
struct PipelinePart {
  std::string name;  // of its parameters: "NAME.weight"; without dots
  std::function<ModelPart()> make;
  double cost = 1;  // what it takes to compute, beside the others
  /// What the whole model has in place of `name` in the names of parameters, for snapshots: "h.3"
  /// where part "h3" has the model's "h.3.ln_1.weight"; empty where it has "wte.weight". Unset:
  /// `name`.
  std::optional<std::string> saved_as = std::nullopt;
};

/// What the loss of a micro-batch counts in the loss of the step.
enum class LossWeight {
  rows,  // its share of the batch's rows: for losses that are means over rows
  one,   // all of it: for losses that are sums
};

/// When the gradients of tied parameters are added.
enum class TieSum {
  each_step,         // one message each way; the sum is rounded in another order
  each_micro_batch,  // the bits of one process with one parameter, for a message a micro-batch
};

struct PipelineOptions {
  int micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  /// How many parts each stage has; empty: divided by their costs.
  std::vector<int> split = {};
  /// One number of what the last part gave and the targets, of a micro-batch; for the last stage.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss = {};
  LossWeight loss_weight = LossWeight::rows;
  /// Parameters that are one ("embed.weight" and "head.weight"), in lists. All of a list begin with
  /// the value of the first, and after each step have the sum of all their gradients.
  std::vector<std::vector<std::string>> ties = {};
  TieSum tie_sum = TieSum::each_step;
  /// Ranks that have the same stage and other samples; gradients become the mean over them. Not a
  /// member (the default): none.
  ProcessGroup data_group = {};
  std::uint64_t seed = 0;  // of initial weights and of random numbers in forward
  std::optional<c10::Device> device = std::nullopt;  // unset: the CPU
};

/// Seconds of one step on one rank.
struct PipelineTimes {
  double step = 0;  // all of it
  double forward = 0, backward = 0;
  double waiting = 0;   // for another stage
  double sending = 0;   // and unpacking
  double reducing = 0;  // means over the data group, and ties

  double computing() const { return forward + backward; }
};

struct PipelineResult {
  at::Tensor loss;  // the weighted sum over the micro-batches, detached; last stage only
  Tensors losses;   // of each micro-batch, unweighted; last stage only
  PipelineTimes times;
};

/// Trains a model that is a chain of parts, a stage of it on each rank of a group:
///
///     std::vector<lockstep::PipelinePart> parts;
///     for (int i = 0; i < 8; ++i) {
///       parts.push_back({"layer" + std::to_string(i),
///                        [] { return lockstep::model_part(torch::nn::Linear(512, 512)); }});
///     }
///     lockstep::Pipeline pipeline(world.group(), parts, {.micro_batches = 8, .loss =
///     mean_square}); lockstep::AdamW optimizer(lockstep::named_parameters(*pipeline.module()),
///     {.lr = 1e-3}); pipeline.zero_grad(); pipeline.train_step({inputs}, {targets});
///     optimizer.step();
///
/// A step divides the batch into micro-batches, so that stages compute different ones at the same
/// time. Each stage adds up the gradients of the micro-batches in their order: on the CPU, losses
/// and gradients have the bits of one process that does the same (docs/model_parallel.md).
///
/// When anything fails in a step, the groups are aborted, so that no rank waits for one that will
/// not come: PeerLost, and Timeout, name rank and stage.
///
/// Thread rule: one thread. Tags from 2^30 - 16 on belong to it in the group.
class Pipeline {
 public:
  /// Every rank of the group constructs it at the same point with the same list and options. Throws
  /// InvalidArgument: a list that cannot be divided so, options that differ between ranks, ties of
  /// what is not there or of different shapes.
  Pipeline(const ProcessGroup& group, const std::vector<PipelinePart>& parts,
           const PipelineOptions& options = {});
  Pipeline(Pipeline&&) noexcept;
  ~Pipeline();

  int stage() const;
  int stages() const;
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() == stages() - 1; }
  /// Names of this stage's parts.
  const std::vector<std::string>& parts() const;

  /// This stage's parts as one module, each under its name: for optimizers and files.
  const std::shared_ptr<torch::nn::Module>& module() const;
  void train(bool on = true);
  void eval() { train(false); }
  void zero_grad();

  /// Forward and backward of one batch. The first stage reads `inputs`, the last one `targets`;
  /// other ranks may give nothing. All of a stage's tensors have the same number of rows. Gradients
  /// are added to those that are there.
  PipelineResult train_step(const Tensors& inputs, const Tensors& targets);
  /// The loss without a backward, and without touching gradients.
  PipelineResult evaluate(const Tensors& inputs, const Tensors& targets);
  /// What the last part gives for the whole batch, joined by rows; empty except on the last stage.
  Tensors forward(const Tensors& inputs);

  /// The loss of a step, as a mean over the data group, on every rank. All ranks call it.
  double mean_loss(const PipelineResult& result);
  /// The times of all stages. All ranks of the group call it.
  std::vector<PipelineTimes> gather_times(const PipelineTimes& own);
  /// Multiplies the gradients of all stages by one factor, so that their common norm is at most
  /// `max_norm`; ties count once. Returns the norm before. All ranks call it.
  double clip_grad_norm(double max_norm);

  /// This stage's parameters in two groups, as lockstep::decay_groups() of the whole model has
  /// them: a group of which this stage has nothing is empty.
  std::vector<ParamGroup> decay_groups(double weight_decay) const;

  /// For snapshots, as ShardedDataParallel's: this stage's parameters and buffers, under the names
  /// of the whole model, as a state in parts (lockstep/tensor_range.h), and the number of the next
  /// step. Of a data group the first rank has the tensors, and of a tie that has one name there the
  /// first stage. The tensors are the live ones.
  State state() const;
  /// What load_newest() reads of a snapshot for this stage.
  TensorRanges ranges() const;
  /// Takes over this stage's tensors from a state that was read so, or from one with all of them.
  /// Throws InvalidArgument, naming a tensor and before anything is changed, for another model.
  void load_state(const State& state);
  /// The same for an optimizer over this stage's parameters. All ranks of the group call
  /// optimizer_state(), with as many groups of parameters.
  State optimizer_state(const Optimizer& optimizer) const;
  void load_optimizer_state(Optimizer& optimizer, const State& state) const;

  /// The number of the next step, on which random numbers in forward depend. It counts by itself; a
  /// run that resumes sets it, or loads it with a state.
  std::int64_t next_step() const;
  void set_next_step(std::int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The share of a step in which stages did not compute: 1 - computing / (stages * longest step).
double measured_bubble(const std::vector<PipelineTimes>& stages);

/// How many parameters each part has, to be used as their costs. Makes one part after the other.
std::vector<double> parameter_counts(const std::vector<PipelinePart>& parts);

}  // namespace lockstep
