#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/error.h"
#include "lockstep/pipeline.h"
#include "pipeline/stage_gradients.h"
#include "pipeline/tensor_line.h"

namespace lockstep {

/// What one Pipeline is made of: pipeline.cpp has set-up and what all ranks compute together,
/// pipeline_step.cpp the steps, pipeline_state.cpp what snapshots hold.
struct Pipeline::Impl {
  ProcessGroup group;
  PipelineOptions options;
  c10::Device device{c10::DeviceType::CPU};
  int stage = 0, stages = 1;

  /// The parts of this stage.
  int first_part = 0;  // its number in the whole list
  std::vector<std::string> part_names;
  std::vector<ModelPart> parts;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<StageParameter> parameters;  // that require gradients

  std::unique_ptr<DataMean> data_mean, tied_mean;  // of parameters that are not tied, and that are
  std::unique_ptr<TiedParameters> ties;

  /// To and from the neighbours; those of the ends are not there.
  std::optional<TensorSender> activations_out, gradients_out, evaluation_out;
  std::optional<TensorReceiver> activations_in, gradients_in, evaluation_in;

  /// Parameters and buffers of all stages, in the order of the list, as snapshots have them.
  struct SavedTensor {
    std::string name;  // in the whole model
    std::vector<std::int64_t> shape;
    bool trained = false;
  };
  std::vector<SavedTensor> saved;
  /// Those of this stage.
  struct HeldTensor {
    std::string name;        // in module()
    std::string saved_name;  // in the whole model
    at::Tensor tensor;
    bool is_first = true;  // of those that are saved under this name; the others are tied to it
  };
  std::vector<HeldTensor> held;

  std::int64_t next_step = 0;
  bool failed = false;

  Impl(const ProcessGroup& group, const std::vector<PipelinePart>& list,
       const PipelineOptions& options);

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  bool trains_data_parallel() const {
    return options.data_group.is_member() && options.data_group.size() > 1;
  }

  void make_parts(const std::vector<PipelinePart>& list, int count);
  void make_lines();
  void agree_on_names();

  // pipeline_state.cpp
  void agree_on_saved_names(const std::vector<PipelinePart>& list);
  bool writes_state() const;
  std::multimap<std::string, const HeldTensor*> held_by_saved_name() const;

  /// What forward keeps of a micro-batch until its backward.
  struct Kept {
    Tensors inputs;   // leaves; those that require gradients get them
    Tensors outputs;  // or the weighted loss, on the last stage
    std::int64_t rows = 0;
  };
  /// One step under way.
  struct Step {
    bool evaluates = false;
    std::vector<std::int64_t> rows;  // of each micro-batch; first and last stage only
    std::int64_t all_rows = 0;
    Tensors inputs, targets;
    std::map<int, Kept> kept;
    PipelineResult result;
    std::vector<Tensors> outputs;  // forward(): of each micro-batch, on the last stage
  };

  Step begin(const Tensors& inputs, const Tensors& targets, bool evaluates, bool needs_targets);
  Tensors rows_of(const Step& step, const Tensors& tensors, int micro_batch) const;
  Kept stage_forward(Step& step, int micro_batch);
  Tensors run_parts(const Step& step, Tensors x, int micro_batch);
  void take_loss(Step& step, Kept& kept, int micro_batch);
  void stage_backward(Step& step, int micro_batch);
  void run_training(Step& step);
  void run_evaluation(Step& step);
  /// When the call throws, no rank shall wait for this one any more.
  template <typename Call>
  void guarded(Call call);
  [[noreturn]] void explain(const PeerLost& lost) const;
};

}  // namespace lockstep
