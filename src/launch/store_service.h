#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "control/store_data.h"
#include "core/unique_fd.h"
#include "launch/event_loop.h"
#include "launch/store_connection.h"
#include "launch/store_listener.h"
#include "launch/store_status.h"

namespace lockstep {

/// Serves a store on an event loop of its own: accepts, reads, executes, answers. What it may be
/// asked from other threads goes through StoreServer. Not thread-safe; never blocks but in turn().
class StoreService {
 public:
  using Log = std::function<void(std::string)>;

  StoreService(UniqueFd listener, std::size_t max_bytes, Log log);

  /// Waits for something to do, at most `limit`, and does it.
  void turn(std::chrono::milliseconds limit);

  EventLoop& loop() { return loop_; }
  void new_keyspace(std::uint64_t epoch);
  void allow(std::set<IpAddress> addresses);
  StoreStatus status() const;

  /// A client, connected by a socket that does not block.
  void add(UniqueFd socket, const StorePeer& peer);

 private:
  using Connections = std::unordered_map<StoreClientId, std::unique_ptr<StoreConnection>>;

  void on_events(StoreClientId id, std::uint32_t events);
  void run_requests(StoreClientId id, StoreConnection& connection);
  std::string run_one(StoreClientId id, StoreConnection& connection, const StoreRequest& request);
  void deliver(const StoreReply& reply);
  void mark_to_send(StoreClientId id, StoreConnection& connection);
  void send_all();
  void watch_for(StoreConnection& connection, std::uint32_t events);

  void count_bytes(StoreConnection& connection);
  void fail(StoreClientId id, StoreConnection& connection, const std::string& problem);
  void drop(StoreClientId id);
  void refused(const std::string& reason);

  EventLoop loop_;
  StoreListener listener_;
  std::size_t max_bytes_;
  Log log_;

  std::uint64_t epoch_ = 0;
  StoreData data_;
  Connections connections_;
  StoreClientId last_id_ = 0;
  std::size_t buffered_bytes_ = 0;        // counted_bytes of all connections
  std::vector<StoreClientId> to_send_;    // have bytes that have not been tried to send
  std::vector<StoreClientId> to_resume_;  // have requests that waited for replies to be read
  std::map<std::string, std::uint64_t> refusals_;
};

}  // namespace lockstep
