#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "train/graph_recorder.h"

namespace lockstep {

enum class StepKind {
  usual,    // with the shapes and numbers of the others
  unusual,  // is done as it is, whatever was recorded
};

/// The parts of a training step as graphs: done as they are in the first steps, then recorded, then
/// replayed, with whatever the host decides in between.
///
///     StepGraphs graphs(device, {.warm_ups = 3});
///     for (...) {
///       graphs.begin_step(StepKind::usual);
///       graphs.run("gradients", [&] { loss = forward(ids); loss.backward(); });
///       if (!std::isfinite(loss.item<double>())) continue;
///       graphs.run("update", [&] { optimizer.step(); });
///       graphs.end_step();
///     }
///
/// A part that is replayed writes where it wrote when it was recorded, so tensors that the work
/// left (`loss` above, gradients) have new values then; whoever holds them keeps them alive. All
/// parts share their memory: they come in the order in which they were recorded. A part that comes
/// several times in a step is recorded the first time.
///
/// A step that does not come to its end counts for nothing: neither as a warm-up, since what the
/// later parts make the first time (an optimizer's state) is not there yet, nor as recorded.
///
/// Thread rule: one thread.
class StepGraphs {
 public:
  struct Options {
    int warm_ups = 3;
  };

  /// Throws what make_graph_recorder() throws.
  StepGraphs(c10::Device device, const Options& options);

  void begin_step(StepKind kind);
  /// Does a part of the step, or replays it, in order with what was and will be launched on the
  /// current stream. Throws Error where it cannot be recorded.
  void run(const std::string& part, const PartOfStep& work);
  void end_step();

  bool is_usual() const { return mode_ != Mode::as_it_is; }
  bool records() const { return mode_ == Mode::record; }
  bool is_recorded() const { return recorded_; }

  void on_stream(const PartOfStep& work) { recorder_->on_stream(work); }

  /// Waits for all that was launched; false if it has not ended in this time. What is replayed has
  /// no time-out of its own: no watchdog knows of the collectives in it.
  bool await(std::chrono::nanoseconds limit) { return recorder_->await(limit); }

  /// Gives up what was recorded, and begins again with the warm-ups.
  void forget();

 private:
  enum class Mode { as_it_is, warm_up, record, replay };

  Options options_;
  std::unique_ptr<GraphRecorder> recorder_;
  int warm_ups_left_;
  bool recorded_ = false;
  Mode mode_ = Mode::as_it_is;  // of the step under way
};

}  // namespace lockstep
