#pragma once

#include <functional>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace at {
class Tensor;
}

namespace lockstep {

/// Brings a batch's tensors to where training wants them: into page-locked memory, and from there
/// to the device, on a stream of its own, so that the copy runs beside what the device computes.
class Staging {
 public:
  /// Calls its argument for every tensor of a batch.
  using Tensors = std::function<void(const std::function<void(at::Tensor&)>&)>;

  Staging(bool pin_memory, std::optional<c10::Device> device);

  /// What the dataset was given before on the caller's stream is finished before copies begin.
  void follow_current_stream();

  /// While it lives, the device's work of the calling thread goes to the stream of the copies.
  std::optional<c10::StreamGuard> on_copy_stream() const;

  /// By the thread that loads. Returns when copies are under way; what is returned says when they
  /// are done.
  std::optional<c10::Event> stage(const Tensors& tensors) const;

  /// By the thread that trains: its stream waits for the copies; the host does not.
  void arrive(const std::optional<c10::Event>& copied, const Tensors& tensors) const;

 private:
  bool pin_ = false;
  std::optional<c10::Device> device_;       // set where tensors have to move
  std::optional<c10::Stream> copy_stream_;  // set where it is an accelerator
};

}  // namespace lockstep
