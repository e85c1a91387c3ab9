#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/rpc.h"
#include "rpc/agent_parts.h"
#include "rpc/connection.h"
#include "rpc/event_loop.h"
#include "rpc/handler_pool.h"
#include "rpc/segment.h"
#include "rpc/sockets.h"

namespace lockstep::rpc::detail {

/// What an Agent is made of.
class AgentCore {
 public:
  AgentCore(std::shared_ptr<Directory> directory, AgentOptions options);
  ~AgentCore();
  /// From now on others find it.
  void publish();

  const std::string& name() const { return options_.name; }
  void serve(const std::string& name, ServedFunction function);
  void serve_class(const std::string& name, ServedClass served);
  std::shared_ptr<CallState> start(const Call& call, std::string signature, Payload payload);
  std::shared_ptr<RemoteObject> make_object(const Call& call, std::string signature,
                                            Payload payload);
  Blob shared_memory(std::size_t bytes);
  void close();

  /// What shutdown() waits for: ranks that leave, through the directory. Set before it is used.
  void set_place(int rank, int world_size) {
    rank_ = rank;
    world_size_ = world_size;
  }
  void shutdown(std::chrono::milliseconds timeout);

 private:
  using Time = std::chrono::steady_clock::time_point;

  class Listener;

  /// The way to another agent. Its fields are under `mutex_`.
  struct Route {
    bool connecting = false;  // a thread does; others wait for it
    std::shared_ptr<Connection> connection;
  };

  struct Object {
    std::shared_ptr<void> value;
    std::shared_ptr<const ServedClass> served;
    std::shared_ptr<HandlerPool::Strand> strand;  // null: methods run at the same time
    std::uint64_t holder = 0;                     // number of the connection
  };

  /// A call as it is served.
  struct Serving {
    std::shared_ptr<Connection> connection;
    Received message;
    Time deadline;
  };

  std::shared_ptr<Connection> connect(const std::string& peer, PendingCall& call);
  std::shared_ptr<Connection> make_connection(const std::string& peer, PendingCall& call);
  PeerAddress look_up(const std::string& peer, Time deadline);
  Connection::Events events();
  void accept_from(int listener, bool local);
  Connection::Options connection_options(bool calls, bool local);
  void make_room_for_strangers();
  void wait_for_answers_to_leave();
  std::string secret();
  PendingCall pending(const Call& call, const char* kind, std::string signature);

  // agent_serving.cpp
  void on_call(const std::shared_ptr<Connection>& connection, Received message);
  void serve_object_call(Serving serving);
  void run(std::shared_ptr<HandlerPool::Strand> strand, Serving serving,
           std::function<void(const Caller&, Reader&, Writer&)> body);
  void refuse(const Serving& serving, FailureKind kind, std::string detail, std::string message);
  void on_drop_object(Connection& connection, std::uint64_t object);
  void on_closed(Connection& connection);
  void let_go(std::vector<std::shared_ptr<Object>> objects);

  AgentOptions options_;
  std::shared_ptr<Directory> directory_;
  PeerAddress address_;
  int rank_ = 0;
  int world_size_ = 0;
  std::shared_ptr<HandlerPool> pool_;
  std::shared_ptr<SegmentPool> segments_;
  std::shared_ptr<EventLoop> loop_;
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> closed_ = false;  // for close() itself

  const std::shared_ptr<ConnectionTable> connections_ = std::make_shared<ConnectionTable>();

  std::mutex mutex_;
  std::condition_variable connected_;
  std::map<std::string, Route> routes_;
  std::map<std::string, std::shared_ptr<const ServedFunction>> functions_;
  std::map<std::string, std::shared_ptr<const ServedClass>> classes_;
  std::map<std::uint64_t, std::shared_ptr<Object>> objects_;
  std::uint64_t next_object_ = 1;
  std::string secret_;
};

}  // namespace lockstep::rpc::detail
