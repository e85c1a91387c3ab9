#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launch/event_loop.h"
#include "launch/job_plan.h"
#include "launch/listen.h"
#include "launch/store_server.h"

namespace lockstep {

/// The store of a job, on the node with group rank 0: a fresh one per epoch.
///
/// While ranks wait long for others that have not come, it says which.
class NodeStore {
 public:
  struct Callbacks {
    std::function<void(const std::string&)> say;
    std::function<void(const std::string&)> log;  // from another thread: who was turned away
  };

  NodeStore(EventLoop& loop, const JobPlan& plan, Callbacks callbacks);
  ~NodeStore();
  NodeStore(const NodeStore&) = delete;
  NodeStore& operator=(const NodeStore&) = delete;

  /// Closes the store of the epoch before, opens another one for the nodes of this membership, and
  /// returns its port. Where that of this epoch is open, this is its port. Throws SystemError if
  /// the port that was asked for cannot be had.
  int open(const Membership& membership);

  /// A connection for a client on another node, whose address this is; none if the store is not
  /// that of the epoch. Throws SystemError.
  UniqueFd connect(Epoch epoch, const std::string& address);

  void close();

 private:
  void watch_arrivals();

  EventLoop& loop_;
  const JobPlan& plan_;
  Callbacks callbacks_;
  std::unique_ptr<StoreServer> server_;
  Membership membership_;
  EventLoop::TimerId watch_{};
  std::string last_said_;
};

}  // namespace lockstep
