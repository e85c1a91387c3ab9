#pragma once

#include <functional>
#include <memory>

namespace lockstep {

/// Runs tasks one after the other in the order in which they came: on a thread of its own, or on
/// the caller's where that waits for the result anyway.
///
/// Destroying it waits until all tasks have run, except on the queue's own thread.
///
/// Thread-safe.
class SerialQueue {
 public:
  SerialQueue();
  ~SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  using Task = std::function<void()>;

  /// Tasks must not throw.
  void post(Task task);

  /// Waits for its turn and runs the task here. Not for the queue's own tasks.
  void run_here(const Task& task);

  /// Whether the calling thread is the queue's own.
  bool on_own_thread() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread has it, too
};

}  // namespace lockstep
