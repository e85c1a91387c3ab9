#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "control/worker_messages.h"
#include "core/unique_fd.h"
#include "launch/event_loop.h"

namespace lockstep {

/// Which place of the job a worker process fills.
struct SlotPlace {
  int slot = 0;
  std::uint64_t epoch = 0;
  std::optional<int> spare = {};  // its number: it has no place yet
};

struct WorkerHubOptions {
  std::string socket_path;  // what LOCKSTEP_AGENT will say
  std::chrono::milliseconds heartbeat_interval{1000};
  std::chrono::milliseconds handshake_timeout{5000};
  std::size_t max_queued_bytes = 1 << 20;  // for one worker
  std::size_t max_connections = 4096;
  bool replaces = false;  // workers are told that those who die are replaced in place
};

/// What is known about the worker of a slot that talks. Kept when it goes, until its successor
/// comes; times are of this machine's monotonic clock.
struct WorkerState {
  WorkerHello hello;
  WorkerHeartbeat heartbeat;                // the latest
  EventLoop::Clock::time_point heard;       // from it at all
  EventLoop::Clock::time_point step_since;  // it reports this step
  bool connected = false;
  bool leaving = false;                    // it said that it ends by itself
  std::optional<WorkerRecovers> recovers;  // the latest, unless it was taken back
};

/// The agent's end of the workers' socket. Programs that never connect are none of its business.
///
/// Who connects must run as this user, be a worker or descend from one, and name that worker's slot
/// and epoch. Callbacks come from the loop and may call every function, but not destroy the hub.
/// The loop must outlive it.
class WorkerHub {
 public:
  struct Callbacks {
    /// The place of a process that the agent started; std::nullopt for any other. A worker may
    /// connect before the agent has noted its pid: it is asked again until the handshake times out.
    std::function<std::optional<SlotPlace>(pid_t)> place_of;
    std::function<void(int slot, const WorkerHello&)> on_hello;
    std::function<void(int slot, const WorkerHeartbeat&)> on_heartbeat;
    std::function<void(int slot, const WorkerLostPeers&)> on_lost_peers;
    std::function<void(int slot)> on_leaving;
    std::function<void(int slot, const WorkerRecovers&)> on_recovers;
    std::function<void(int slot, const WorkerRejected&)> on_rejected;
    /// A spare has loaded its program and waits for a place.
    std::function<void(int spare)> on_spare = [](int) {};
    /// The connection ended; the process may live on. Not called for spares.
    std::function<void(int slot, const std::string& reason)> on_gone;
    /// Someone was turned away, for the log.
    std::function<void(const std::string& reason)> on_refused;
  };

  /// Makes the socket. Throws SystemError.
  WorkerHub(EventLoop& loop, WorkerHubOptions options, Callbacks callbacks);
  ~WorkerHub();
  WorkerHub(const WorkerHub&) = delete;
  WorkerHub& operator=(const WorkerHub&) = delete;

  const std::string& socket_path() const { return options_.socket_path; }

  /// These return false if no worker of that slot is connected.
  bool connected(int slot) const { return slots_.contains(slot); }
  bool stop(int slot, const std::string& reason, std::chrono::milliseconds remaining);
  /// Not to a worker that speaks version 1: false.
  bool revoke(int slot, const RevokeWorld& revoke);
  bool announce(int slot, const NewWorld& world);
  bool ping(int slot);

  /// A spare becomes the worker of a place. False, and nothing was sent: it is not connected, or
  /// has not been heard of for a few heartbeats.
  bool give_place(int spare, const SlotPlace& place, const TakePlace& take);

  /// Reads what workers have said by now. For who learns of an event from elsewhere, such as a
  /// worker's death: what was said before it is heard before it.
  void catch_up();

  /// All that are connected.
  void stop_all(const std::string& reason, std::chrono::milliseconds remaining);

  /// Null if no worker of the slot ever connected. Valid until the loop runs again.
  const WorkerState* state(int slot) const;

 private:
  struct Connection;
  using Handle = std::shared_ptr<Connection>;

  void on_connection();
  void pause_accepting();
  void adopt(UniqueFd socket);
  void on_ready(const Handle& connection, std::uint32_t events);
  bool read(const Handle& connection);
  void read_all(const Handle& connection);
  void take_message(const Handle& connection, const std::string& text);
  void take_recovery_message(const Connection& connection, const MessageFromWorker& message);
  void take_first_message(const Handle& connection, const MessageFromWorker& message);
  void try_to_welcome(const Handle& connection);
  void welcome(const Handle& connection, int protocol);
  bool make_room(const Handle& connection);
  void fill_slot(const Handle& connection);
  static void take_message_of_spare(const MessageFromWorker& message);
  bool send(int slot, const MessageToWorker& message);
  void send(const Handle& connection, const MessageToWorker& message);
  void flush(Connection& connection);
  void refuse(const Handle& connection, const std::string& reason);
  void drop(const Handle& connection, const std::string& reason);
  std::optional<SlotPlace> place_of_ancestor(pid_t pid) const;

  EventLoop& loop_;
  WorkerHubOptions options_;
  Callbacks callbacks_;
  UniqueFd listener_;
  std::map<int, Handle> connections_;  // by descriptor
  std::map<int, Handle> slots_;        // those that were welcomed
  std::map<int, Handle> spares_;       // likewise, and wait for a place
  std::map<int, WorkerState> states_;
  EventLoop::TimerId resume_{};
};

}  // namespace lockstep
