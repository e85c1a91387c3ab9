#pragma once

#include <functional>
#include <set>
#include <string>

#include "core/unique_fd.h"
#include "launch/event_loop.h"
#include "launch/ip_address.h"
#include "launch/store_connection.h"

namespace lockstep {

/// The door of a store: accepts connections and turns away those from machines that are no part of
/// the job. Runs on the loop it is given and never blocks.
class StoreListener {
 public:
  struct Callbacks {
    std::function<void(UniqueFd, const StorePeer&)> accepted;
    std::function<void(std::string)> refused;  // a connection, for this reason
    std::function<void(std::string)> log;
  };

  /// `socket` is bound and listens. The loop must outlive this.
  StoreListener(EventLoop& loop, UniqueFd socket, Callbacks callbacks);
  ~StoreListener();
  StoreListener(const StoreListener&) = delete;
  StoreListener& operator=(const StoreListener&) = delete;

  /// Who may connect beside this machine itself.
  void allow(std::set<IpAddress> addresses) { allowed_ = std::move(addresses); }

  bool is_allowed(const StorePeer& peer) const;

  /// Closes connections that the kernel holds for us and that have not been accepted.
  void turn_away_waiting();

 private:
  void accept_some();
  void wait_for_descriptors(int error);
  void watch();

  EventLoop& loop_;
  UniqueFd socket_;
  Callbacks callbacks_;
  std::set<IpAddress> allowed_;
  bool out_of_descriptors_ = false;  // and has said so
  bool watched_ = false;
  EventLoop::TimerId pause_{};
};

}  // namespace lockstep
