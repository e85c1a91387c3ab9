#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/socket_handles.h"
#include "core/unique_fd.h"

namespace lockstep {

/// Lets go of those who wait for messages that Gloo has forgotten.
///
/// When a connection ends, Gloo fails the messages that had not begun; one that is half written or
/// half read it drops, and whoever waits for it would stay until the time-out. So a thread waits
/// for connections to end, and then asks about those that somebody waits for: a message on one that
/// Gloo knows to be lost will never come. That one rank has left is no failure: others may still
/// write to each other.
///
/// Thread-safe.
class MessageWatch {
 public:
  /// Whether Gloo has given the connection up. Called on the watch's thread.
  using IsLost = std::function<bool(int connection)>;

  MessageWatch(std::shared_ptr<const SocketHandles> sockets, IsLost is_lost);
  ~MessageWatch() { stop(); }
  MessageWatch(const MessageWatch&) = delete;
  MessageWatch& operator=(const MessageWatch&) = delete;

  /// Waits for a message as its `work` does; throws when it cannot come any more.
  bool wait(c10d::Work& work, int connection, std::chrono::milliseconds timeout);

  /// Asks nothing any more. Who still waits stays with Gloo. Not from several threads.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Waiter {
    c10d::Work& work;
    int connection = 0;
    bool let_go = false;
  };

  void run();
  /// Asks about the connections that are waited for, and when to do so again.
  std::optional<Clock::time_point> ask();
  void wake();

  std::shared_ptr<const SocketHandles> sockets_;
  IsLost is_lost_;
  UniqueFd wake_;

  std::mutex mutex_;
  std::list<Waiter> waiters_;
  std::vector<int> ended_;                     // sockets of connections
  std::optional<Clock::time_point> ended_at_;  // when the last of the ended connections did
  std::map<int, Clock::time_point> ask_at_;    // later than soon after that
  std::set<int> lost_;
  bool stop_ = false;
  std::thread thread_;  // from the first waiter on
};

}  // namespace lockstep
