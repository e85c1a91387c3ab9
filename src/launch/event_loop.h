#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "core/unique_fd.h"

namespace lockstep {

/// One thread's file descriptors and timers. The production shell of the launcher's state machines
/// runs on one of these.
///
/// Callbacks run in run(), on its thread, and may call every function below, also for the
/// descriptor or timer that they belong to. Not thread-safe.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using TimerId = std::pair<Clock::time_point, std::uint64_t>;

  EventLoop();

  /// Calls `ready` with the epoll events that came. The descriptor stays the caller's, who must
  /// call unwatch() before closing it.
  void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready);

  /// Other events for a watched descriptor.
  void change(int fd, std::uint32_t events);

  void unwatch(int fd);

  /// Calls `due` once, not before `when`.
  TimerId at(Clock::time_point when, std::function<void()> due);
  TimerId after(Clock::duration delay, std::function<void()> due) {
    return at(Clock::now() + delay, std::move(due));
  }

  /// A timer that has run or was cancelled before is no error.
  void cancel(const TimerId& timer) { timers_.erase(timer); }

  /// Runs callbacks until stop().
  void run();

  /// Runs what is due now and waits at most `limit` for something to come.
  void run_once(std::chrono::milliseconds limit);

  void stop() { stopped_ = true; }

 private:
  struct Watch {
    std::uint64_t generation;  // tells a descriptor from an earlier one with the same number
    std::function<void(std::uint32_t)> ready;
  };

  std::chrono::milliseconds until_next_timer(std::chrono::milliseconds limit) const;
  void run_timers();

  UniqueFd epoll_;
  std::unordered_map<int, std::shared_ptr<Watch>> watches_;
  std::map<TimerId, std::function<void()>> timers_;
  std::uint64_t counter_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep
