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
/// a step of hundreds of kernels costs the host one call.
///
///     at::Tensor ids = ..., labels = ...;  // stay where they are; copy_() new ones into them
///     lockstep::GraphedStep step([&] {
///       optimizer.zero_grad();
///       lockstep::Gpt2Loss loss = model->forward(ids, labels);
///       (loss.sum / tokens).backward();
///       optimizer.step();
///     });
///     step.run();
///
/// What is recorded: every kernel with its addresses and numbers. So the work must not wait for the
/// device nor ask it for a value, shapes may not change, and what changes from step to step (such
/// as a learning rate) must be in a tensor. Thread rule: one thread.
///
/// For benchmarks so far: it becomes public with a training run that compares it, step for step.
class GraphedStep {
 public:
  /// Throws Error where lockstep was built without CUDA.
  explicit GraphedStep(std::function<void()> work, GraphedStepOptions options = {});
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// Does the work once, in order with what was and will be launched on the current stream.
  void run();

  bool is_recorded() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
