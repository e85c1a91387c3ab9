#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/coordinator.h"
#include "launch/event_loop.h"
#include "launch/link_server.h"
#include "launch/stack_collection.h"
#include "launch/stream_bundle.h"

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
    /// The store of an epoch is to be opened, before its nodes are told of the epoch. This and the
    /// next are asked for only where the store is local (see JobTerms).
    std::function<void(const Membership&)> open_store;
    /// A connection to it for a worker on the node at this address; none: it is not that epoch's.
    std::function<UniqueFd(Epoch epoch, const std::string& address)> connect_store;
    /// A node has joined or was lost; `text` is for people, unless it is empty. May be unset: then
    /// people are told, and that is all.
    std::function<void(const std::string& text, const NodeChange&)> node_changed = {};
    /// A node asks to take part, for the first time or again. This and the next may be unset.
    std::function<void(const NodeInfo&)> asks_to_join = {};
    /// A node is told of an epoch; once for each of them.
    std::function<void(const Membership&)> prepares = {};
    /// Keeps a record for a coordinator after this one, and says when it is kept. Until then no
    /// node is told of a new epoch, so that no other coordinator can take its number. May be unset.
    std::function<void(const CoordinatorRecord&, std::function<void()> kept)> keep_record = {};
  };

  /// Nodes that connect from elsewhere; unset for a job on one node.
  struct Remote {
    UniqueFd listener;
    LinkServerOptions options;
    std::vector<UniqueFd> more_listeners = {};
  };

  CoordinatorShell(EventLoop& loop, const CoordinatorOptions& options, std::optional<Remote> remote,
                   Callbacks callbacks);
  ~CoordinatorShell();
  CoordinatorShell(const CoordinatorShell&) = delete;
  CoordinatorShell& operator=(const CoordinatorShell&) = delete;

  /// What the agent of this process says.
  void from_local_agent(const Message& message);

  /// A signal for the workers of all nodes, that came to this process.
  void pass_signal(const PassSignal& signal);

  /// See Coordinator::on_end_request().
  void request_end(int signal, const std::string& reason);

  Coordinator::Phase phase() const { return coordinator_.phase(); }
  Epoch epoch() const { return coordinator_.epoch(); }
  std::string status() const;
  /// Valid once the job is over.
  const Finish& outcome() const { return coordinator_.outcome(); }

  /// Everyone has been told the end, and the kernel has taken every byte of it.
  bool done() const;

 private:
  /// A connection to a node.
  struct Link {
    std::string address;  // where it comes from
    std::string host;     // of the node that has joined over it
    std::unique_ptr<StreamBundle> streams;
    bool told_address = false;  // that it is not the one that the node gives
  };

  LinkServer::Callbacks server_callbacks();
  void receive(LinkServer::Id id, const std::string& text);
  void take(LinkId link, const Message& message);
  void receive_stream(LinkServer::Id id, std::string_view text);
  void note_address(Link& link, Join& join);
  void note_clock(const Join& join);
  void refuse(LinkServer::Id id, const std::string& reason);
  void close(LinkServer::Id id);
  void perform(Coordinator::Actions actions);
  void keep_record();
  void on_kept();
  void carry_out(const CoordinatorAction& action);
  void send(LinkId link, const Message& message);
  void set_timer();

  EventLoop& loop_;
  bool local_store_;
  Coordinator coordinator_;
  Callbacks callbacks_;
  std::unique_ptr<LinkServer> server_;
  std::map<LinkId, Link> links_;       // after the server, whose queues streams look at
  std::set<std::string> clocks_told_;  // hosts whose clocks are wrong
  StackCollection stacks_;
  EventLoop::TimerId timer_{};
  std::uint64_t kept_version_ = 0;  // of the coordinator's record
  Epoch kept_epoch_ = 0;
  int unkept_epochs_ = 0;                // whose record is not kept yet
  std::vector<CoordinatorAction> held_;  // until it is
  bool done_ = false;
  // Posted calls outlive this object; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

/// Monotonic time as the state machines count it.
Time monotonic_now();
EventLoop::Clock::time_point to_time_point(Time time);

}  // namespace lockstep
