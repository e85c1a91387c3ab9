#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "core/unique_fd.h"

namespace lockstep {

/// Writes to a console from a thread of its own, because a console can block for ever: a pager that
/// nobody scrolls, a terminal stopped with Ctrl-S. Everything here but wait_empty() returns at
/// once.
class ConsoleSink {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::size_t queue_bytes = 1 << 20;
    std::chrono::milliseconds stall_after{5000};
    std::shared_ptr<const UniqueFd> room;  // an eventfd, raised when a full queue has room again
  };

  /// Keeps a duplicate of the descriptor. Its mode (blocking or not) is left alone: other programs
  /// share it.
  ConsoleSink(int fd, Options options);

  /// Drops what is still queued. A thread that is blocked in a write is left behind; it touches
  /// nothing but its own queue and ends when the write does.
  ~ConsoleSink();

  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  /// Queues the text, however much is queued already; callers ask full() first.
  void push(std::string_view text);

  bool full() const;

  /// Full, and nothing could be written for `stall_after`.
  bool stalled() const;

  /// Whether all was written, or dropped because the console is closed, before the deadline.
  bool wait_empty(Clock::time_point deadline) const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep
