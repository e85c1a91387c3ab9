#pragma once

#include <functional>
#include <memory>
#include <string>

namespace lockstep {

/// The parts of a training step as CUDA graphs: done as they are in the first steps, then recorded,
/// then replayed, with whatever the host decides in between.
///
///     StepGraphs graphs({.warm_ups = 3});
///     for (...) {
///       graphs.begin_step();
///       graphs.run("gradients", [&] { loss = forward(ids); loss.backward(); });
///       if (loss.isfinite()) graphs.run("update", [&] { optimizer.step(); });
///     }
///
/// A part that is replayed writes where it wrote when it was recorded, so tensors that the work
/// left (`loss` above, gradients) have new values then; whoever holds them keeps them alive. All
/// parts share their memory: they come in the order in which they were recorded.
///
/// Thread rule: one thread.
class StepGraphs {
 public:
  struct Options {
    int warm_ups = 3;
  };

  /// Throws Error where lockstep was built without CUDA.
  explicit StepGraphs(const Options& options);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// `usual`: the step has the shapes and numbers of the others. One that has not is done as it is.
  void begin_step(bool usual = true);
  bool is_usual() const;
  bool is_recorded() const;
  /// Parts of this step are replayed, not done.
  bool replays() const;

  /// Does a part of the step, or replays it, in order with what was and will be launched on the
  /// current stream. Throws Error where it cannot be recorded.
  void run(const std::string& part, const std::function<void()>& work);

  /// On the stream of the parts, for what must know it: gradients are added to on the stream on
  /// which a reducer's hooks were made.
  void on_stream(const std::function<void()>& work);

  /// Gives up what was recorded, and begins again: a group that is torn down waits for graphs that
  /// have its operations in them.
  void forget();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
