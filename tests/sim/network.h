#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "launch/coordinator.h"
#include "sim/event_queue.h"
#include "sim/random.h"

namespace lockstep::sim {

/// Who the network tells.
class NetworkUsers {
 public:
  virtual ~NetworkUsers() = default;
  virtual bool coordinator_listens() const = 0;
  /// Whether the process that asked for this connection still wants it.
  virtual bool awaits_connection(int node, std::uint64_t attempt) const = 0;
  /// A fault; where only one end learns of it, the other is left with half a connection.
  virtual void connection_breaks(int node, bool both_learn) = 0;
  virtual void connected(int node, LinkId link) = 0;
  virtual void connect_failed(int node, const std::string& reason) = 0;
  virtual void arrived_at_node(int node, const std::string& text) = 0;
  virtual void lost_at_node(int node, const std::string& reason) = 0;
  virtual void arrived_at_coordinator(LinkId link, int node, const std::string& text) = 0;
  virtual void lost_at_coordinator(LinkId link, const std::string& reason) = 0;
};

/// What a node and the coordinator have said to each other.
struct Traffic {
  std::uint64_t beats = 0;            // both ways, with the lines that say who is awaited
  std::uint64_t messages = 0;         // both ways, all others
  std::uint64_t rounds = 0;           // connections and epochs, which each cost some messages
  std::uint64_t surveys = 0;          // of the network
  std::uint64_t survey_messages = 0;  // both ways, not among the messages above
  std::size_t longest = 0;            // bytes of one message
};

/// Connections between nodes and the coordinator as TCP makes them: in order, with delays; what is
/// sent into a partition waits there; when a connection breaks, what was under way is lost, and
/// each end learns of it at its own time, or never.
class Network {
 public:
  enum class Way { up = 0, down = 1 };  // to the coordinator, to the node

  Network(EventQueue& queue, Random& random, NetworkUsers& users, std::size_t nodes);

  void connect(int node, std::uint64_t attempt);
  void send_to_coordinator(LinkId link, const std::string& text);
  void send_to_node(LinkId link, const std::string& text);
  void close_at_node(LinkId link);
  void close_at_coordinator(LinkId link);
  void close_all_at_coordinator();
  /// The process is gone. Its machine tells the other end, unless it is gone too.
  void node_died(int node, bool peers_are_told);
  void coordinator_died(bool peers_are_told);

  bool open_at_coordinator(LinkId link) const;
  const std::vector<Traffic>& traffic() const { return traffic_; }  // by node

  // Faults.
  void block(int node, Way way, bool blocked);
  /// Whether something of what it sends or should get does not pass.
  bool is_cut_off(int node) const {
    const auto& ways = blocked_[static_cast<std::size_t>(node)];
    return ways[0] || ways[1];
  }
  /// Breaks the node's connection, if it has one. An end that does not learn of it is left with
  /// half a connection.
  void break_connection(int node, bool node_learns, bool coordinator_learns);
  /// Delivers something again that has arrived before, under the same coordinator.
  void repeat_something(int node, Way way);
  void heal_all();
  /// Of a hundred messages that matter, how many are lost together with their connection, and how
  /// many are followed by an older one once more.
  void harm_messages(int losing_percent, int repeating_percent) {
    losing_percent_ = losing_percent;
    repeating_percent_ = repeating_percent;
  }

 private:
  struct Parcel {
    Time ready{0};
    std::string text;  // empty: the sender has closed the connection
  };
  struct Connection {
    int node = 0;
    bool broken = false;
    bool node_open = true;
    bool coordinator_open = true;
    std::array<std::deque<Parcel>, 2> under_way;
  };

  Time delay(int node);
  void post(LinkId link, Way way, const std::string& text);
  void enqueue(LinkId link, Way way, const std::string& text);
  void count(int node, const std::string& text);
  void pump(LinkId link, Way way);
  void remember(int node, Way way, const std::string& text);
  void break_up(LinkId link, bool node_learns, bool coordinator_learns);
  void deliver(LinkId link, Way way, const std::string& text);
  void tell_node(LinkId link, Time delay, const std::string& reason);
  void tell_coordinator(LinkId link, Time delay, const std::string& reason);
  std::deque<Parcel>& parcels(LinkId link, Way way);

  EventQueue& queue_;
  Random& random_;
  NetworkUsers& users_;
  LinkId next_link_ = 1;
  int losing_percent_ = 0;
  int repeating_percent_ = 0;
  std::map<LinkId, Connection> connections_;
  std::vector<std::vector<LinkId>> links_;                        // by node, in order
  std::vector<Traffic> traffic_;                                  // by node
  std::vector<std::array<bool, 2>> blocked_;                      // by node
  std::vector<std::array<std::vector<std::string>, 2>> arrived_;  // what may be repeated, by node
};

}  // namespace lockstep::sim
