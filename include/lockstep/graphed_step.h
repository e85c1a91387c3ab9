#pragma once

#include <functional>
#include <memory>

namespace lockstep {

struct GraphedStepOptions {
  /// How often the work is done as it is before it is recorded: algorithms are chosen and buffers
  /// come to be in that time. At least 1.
  int warm_ups = 3;
};

/// Work on a GPU that is the same each time: recorded once as a CUDA graph, then replayed, so that
/// a step of hundreds of kernels costs the host one call. For training loops of one process;
/// TrainerOptions::cuda_graph does it for the Trainer, on several ranks, too.
///
///     at::Tensor ids = ..., labels = ...;  // stay where they are; copy_() new ones into them
///     lockstep::GraphedStep step([&] {
///       optimizer.zero_grad();
///       lockstep::Gpt2Loss loss = model->forward(ids, labels);
///       (loss.sum / tokens).backward();
///       optimizer.step({.lr = {rate}});  // a tensor on the device: fill_() it
///     });
///     step.run();
///
/// What is recorded: every kernel with its addresses and numbers. So the work must not wait for the
/// device nor ask it for a value, shapes may not change, and what changes from step to step (such
/// as a learning rate) must be in a tensor. The memory that it takes stays its own.
///
/// Thread rule: one thread.
class GraphedStep {
 public:
  /// Throws Error where lockstep was built without CUDA.
  explicit GraphedStep(std::function<void()> work, GraphedStepOptions options = {});
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// Does the work once, in order with what was and will be launched on the current stream. Throws
  /// Error when it is to be recorded and waits for the device.
  void run();

  bool is_recorded() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
