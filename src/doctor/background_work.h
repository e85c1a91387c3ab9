#pragma once

#include <functional>
#include <memory>

#include "launch/event_loop.h"

namespace lockstep {

/// Runs what blocks beside a loop.
class BackgroundWork {
 public:
  /// What is to be done on the loop with the result.
  using Then = std::function<void()>;

  explicit BackgroundWork(EventLoop& loop);
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  /// Calls `work` in a thread of its own, then what it returned from the loop. Forgotten, with the
  /// thread, when this object goes first: `work` must own what it uses, and must not throw.
  void start(std::function<Then()> work);

 private:
  struct Done;
  void on_done();

  EventLoop& loop_;
  std::shared_ptr<Done> done_;
};

}  // namespace lockstep
