#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

namespace lockstep {

using PartOfStep = std::function<void()>;

/// Records parts of a step, by name, and replays them.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;

  /// In order with what was and will be launched on the current stream, on the one that is
  /// recorded: gradients are added to on the stream on which a reducer's hooks were made.
  virtual void on_stream(const PartOfStep& work) = 0;
  /// Once or more before anything is recorded.
  virtual void warm_up(const PartOfStep& work) = 0;

  virtual void begin_recording() = 0;
  /// Records the work and replays it. Throws Error where it cannot be recorded.
  virtual void record(const std::string& part, const PartOfStep& work) = 0;
  virtual bool has(const std::string& part) const = 0;

  virtual void begin_replays() = 0;
  /// `work` is what was recorded, with whatever it refers to now.
  virtual void replay(const std::string& part, const PartOfStep& work) = 0;

  /// Whether all that was launched has ended, or does so in this time.
  virtual bool await(std::chrono::nanoseconds limit) = 0;

  virtual void forget() = 0;
};

/// For a GPU, CUDA graphs. Throws Error where lockstep was built without CUDA.
///
/// For the CPU, with LOCKSTEP_REHEARSE_GRAPHS in the environment, one that does the work each time:
/// so all that surrounds graphs is tested where there is no GPU. Throws InvalidArgument without it.
std::unique_ptr<GraphRecorder> make_graph_recorder(c10::Device device);

/// What rehearsals of this process have done, in parts of steps; and what they are to do.
struct RehearsedParts {
  int recorded = 0;
  int replayed = 0;
  bool hang = false;  // from now on, as it looks to those who wait
};
RehearsedParts& rehearsed_parts();

}  // namespace lockstep
