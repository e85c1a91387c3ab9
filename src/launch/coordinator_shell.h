#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launch/coordinator.h"
#include "launch/event_loop.h"
#include "launch/link_server.h"

namespace lockstep {

/// Runs the job's coordinator on an event loop: gives it time, connections, and a way to speak.
///
/// The agent of the same process is connected by calls, the others over a LinkServer.
class CoordinatorShell {
 public:
  struct Callbacks {
    std::function<void(const Message&)> to_local_agent;
    std::function<void(const std::string& reason)> local_agent_closed;
    std::function<void(const std::string& text)> say;
    std::function<void()> done;
  };

  /// Nodes that connect from elsewhere; unset for a job on one node.
  struct Remote {
    UniqueFd listener;
    LinkServerOptions options;
  };

  CoordinatorShell(EventLoop& loop, const CoordinatorOptions& options, std::optional<Remote> remote,
                   Callbacks callbacks);
  ~CoordinatorShell();
  CoordinatorShell(const CoordinatorShell&) = delete;
  CoordinatorShell& operator=(const CoordinatorShell&) = delete;

  /// What the agent of this process says.
  void from_local_agent(const Message& message);

  /// Everyone has been told the end, and the kernel has taken every byte of it.
  bool done() const;

 private:
  void perform(Coordinator::Actions actions);
  void set_timer();

  EventLoop& loop_;
  Coordinator coordinator_;
  Callbacks callbacks_;
  std::unique_ptr<LinkServer> server_;
  EventLoop::TimerId timer_{};
  bool done_ = false;
  // Posted calls outlive this object; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// Monotonic time as the state machines count it.
Time monotonic_now();
EventLoop::Clock::time_point to_time_point(Time time);

}  // namespace lockstep
