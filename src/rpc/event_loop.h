#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/unique_fd.h"

namespace lockstep::rpc {

/// One thread that waits for sockets and for points in time. Thread-safe.
class EventLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// What is told of them, on that thread.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void on_events(std::uint32_t events) = 0;  // of epoll
    /// When it next wants to be asked; Time::max(): never.
    virtual Time on_time(Time now) = 0;
  };

  EventLoop();  // throws SystemError
  ~EventLoop();

  /// `handler` hears of the descriptor until it is removed. Returns its number here. Throws
  /// ShutDown after stop(), SystemError.
  std::uint64_t add(int descriptor, std::uint32_t events, std::shared_ptr<Handler> handler);
  void change(std::uint64_t number, int descriptor, std::uint32_t events);
  /// No call begins after it on the loop's own thread, one may on others.
  void remove(std::uint64_t number, int descriptor);

  /// Has all on_time() called then at the latest.
  void wake_by(Time time);

  /// Ends the thread, and lets go of all handlers.
  void stop();

 private:
  void run();
  void check_times(Time now);
  void wake();

  UniqueFd epoll_;
  UniqueFd event_;
  std::atomic<std::int64_t> wake_at_;  // nanoseconds of the clock
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, std::shared_ptr<Handler>> handlers_;
  std::thread thread_;
};

}  // namespace lockstep::rpc
