#include "sim/network.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

bool is_one_of(const std::string& text, std::initializer_list<const char*> kinds) {
  constexpr std::string_view kKey = "\"kind\":\"";
  const auto at = text.find(kKey);
  if (at == std::string::npos) return false;
  const auto kind = std::string_view(text).substr(at + kKey.size());
  return std::ranges::any_of(kinds, [&](std::string_view each) {
    return kind.starts_with(each) && kind.substr(each.size()).starts_with('"');
  });
}

// Only what names its epoch may come twice.
bool may_repeat(const std::string& text) {
  return is_one_of(text, {"ready", "failed", "succeeded", "stopped", "prepare", "start", "stop"});
}

}  // namespace

Network::Network(EventQueue& queue, Random& random, NetworkUsers& users, std::size_t nodes)
    : queue_(queue),
      random_(random),
      users_(users),
      links_(nodes),
      traffic_(nodes),
      blocked_(nodes),
      arrived_(nodes) {}

Time Network::delay(int node) {
  if (node == 0) return 1us;  // within one process
  return random_.percent(5) ? random_.between(1ms, 400ms) : random_.between(50us, 3ms);
}

std::deque<Network::Parcel>& Network::parcels(LinkId link, Way way) {
  return connections_.at(link).under_way[static_cast<std::size_t>(way)];
}

void Network::connect(int node, std::uint64_t attempt) {
  const auto at = static_cast<std::size_t>(node);
  if (blocked_[at][0] || blocked_[at][1]) {
    queue_.after(random_.between(500ms, 3s), [this, node, attempt] {
      if (users_.awaits_connection(node, attempt)) users_.connect_failed(node, "timed out");
    });
    return;
  }
  queue_.after(delay(node), [this, node, attempt] {
    if (!users_.awaits_connection(node, attempt)) return;
    if (!users_.coordinator_listens()) return users_.connect_failed(node, "connection refused");
    const LinkId link = next_link_++;
    connections_[link].node = node;
    links_[static_cast<std::size_t>(node)].push_back(link);
    users_.connected(node, link);
  });
}

void Network::send_to_coordinator(LinkId link, const std::string& text) {
  if (connections_.at(link).node_open) post(link, Way::up, text);
}

void Network::send_to_node(LinkId link, const std::string& text) {
  if (open_at_coordinator(link)) post(link, Way::down, text);
}

void Network::post(LinkId link, Way way, const std::string& text) {
  Connection& connection = connections_.at(link);
  if (connection.broken) return;
  const bool matters = may_repeat(text) || is_one_of(text, {"join", "leave", "finish"});
  if (matters && connection.node != 0 && random_.percent(losing_percent_)) {
    const int who_learns = random_.between(1, 4);  // 3, 4: both
    return break_up(link, who_learns != 1, who_learns != 2);
  }
  enqueue(link, way, text);
  if (matters && random_.percent(repeating_percent_)) repeat_something(connection.node, way);
}

void Network::count(int node, const std::string& text) {
  Traffic& traffic = traffic_[static_cast<std::size_t>(node)];
  const bool is_beat = text.empty() || is_one_of(text, {"beat", "status"});
  const bool is_survey = is_one_of(text, {"ask_addresses", "addresses", "probe_nodes", "probed"});
  ++(is_beat ? traffic.beats : is_survey ? traffic.survey_messages : traffic.messages);
  if (is_one_of(text, {"ask_addresses"})) ++traffic.surveys;
  if (is_one_of(text, {"join", "prepare"})) ++traffic.rounds;
  traffic.longest = std::max(traffic.longest, text.size());
}

void Network::enqueue(LinkId link, Way way, const std::string& text) {
  count(connections_.at(link).node, text);
  auto& queue = parcels(link, way);
  Time ready = queue_.now() + delay(connections_.at(link).node);
  if (!queue.empty()) ready = std::max(ready, queue.back().ready);
  queue.push_back({ready, text});
  queue_.at(ready, [this, link, way] { pump(link, way); });
}

void Network::pump(LinkId link, Way way) {
  auto& queue = parcels(link, way);
  const auto node = static_cast<std::size_t>(connections_.at(link).node);
  while (!queue.empty() && queue.front().ready <= queue_.now()) {
    if (blocked_[node][static_cast<std::size_t>(way)]) return;  // heal() comes back to it
    const std::string text = std::move(queue.front().text);
    queue.pop_front();
    deliver(link, way, text);
  }
}

void Network::remember(int node, Way way, const std::string& text) {
  if (!may_repeat(text)) return;
  arrived_[static_cast<std::size_t>(node)][static_cast<std::size_t>(way)].push_back(text);
}

void Network::deliver(LinkId link, Way way, const std::string& text) {
  Connection& connection = connections_.at(link);
  if (way == Way::up) {
    if (!connection.coordinator_open) return;
    remember(connection.node, way, text);
    if (!text.empty()) return users_.arrived_at_coordinator(link, connection.node, text);
    connection.coordinator_open = false;
    return users_.lost_at_coordinator(link, "it closed the connection");
  }
  if (!connection.node_open) return;
  remember(connection.node, way, text);
  if (!text.empty()) return users_.arrived_at_node(connection.node, text);
  connection.node_open = false;
  users_.lost_at_node(connection.node, "the coordinator closed the connection");
}

void Network::close_at_node(LinkId link) {
  Connection& connection = connections_.at(link);
  if (!connection.node_open) return;
  post(link, Way::up, "");
  connection.node_open = false;
}

void Network::close_at_coordinator(LinkId link) {
  Connection& connection = connections_.at(link);
  if (!connection.coordinator_open) return;
  post(link, Way::down, "");
  connection.coordinator_open = false;
}

void Network::close_all_at_coordinator() {
  for (auto& [link, connection] : connections_) close_at_coordinator(link);
}

bool Network::open_at_coordinator(LinkId link) const {
  const auto found = connections_.find(link);
  return found != connections_.end() && found->second.coordinator_open;
}

void Network::tell_node(LinkId link, Time delay, const std::string& reason) {
  queue_.after(delay, [this, link, reason] {
    Connection& connection = connections_.at(link);
    if (!connection.node_open) return;
    connection.node_open = false;
    users_.lost_at_node(connection.node, reason);
  });
}

void Network::tell_coordinator(LinkId link, Time delay, const std::string& reason) {
  queue_.after(delay, [this, link, reason] {
    Connection& connection = connections_.at(link);
    if (!connection.coordinator_open) return;
    connection.coordinator_open = false;
    users_.lost_at_coordinator(link, reason);
  });
}

void Network::node_died(int node, bool peers_are_told) {
  arrived_[static_cast<std::size_t>(node)] = {};
  for (const LinkId link : links_[static_cast<std::size_t>(node)]) {
    Connection& connection = connections_.at(link);
    if (!connection.node_open) continue;
    connection.node_open = false;
    connection.broken = true;
    for (auto& queue : connection.under_way) queue.clear();
    if (peers_are_told) tell_coordinator(link, random_.between(1ms, 500ms), "reset by peer");
  }
}

void Network::coordinator_died(bool peers_are_told) {
  for (auto& arrived : arrived_) arrived = {};
  for (auto& [link, connection] : connections_) {
    if (!connection.coordinator_open) continue;
    connection.coordinator_open = false;
    connection.broken = true;
    for (auto& queue : connection.under_way) queue.clear();
    if (peers_are_told) tell_node(link, random_.between(1ms, 500ms), "reset by peer");
  }
}

void Network::block(int node, Way way, bool blocked) {
  blocked_[static_cast<std::size_t>(node)][static_cast<std::size_t>(way)] = blocked;
  if (blocked) return;
  for (const LinkId link : links_[static_cast<std::size_t>(node)]) {
    if (parcels(link, way).empty()) continue;
    queue_.after(delay(node), [this, link, way] { pump(link, way); });
  }
}

void Network::break_connection(int node, bool node_learns, bool coordinator_learns) {
  for (const LinkId link : links_[static_cast<std::size_t>(node)]) {
    const Connection& connection = connections_.at(link);
    if (connection.broken || !connection.node_open) continue;
    break_up(link, node_learns, coordinator_learns);
  }
}

void Network::break_up(LinkId link, bool node_learns, bool coordinator_learns) {
  Connection& connection = connections_.at(link);
  connection.broken = true;
  for (auto& queue : connection.under_way) queue.clear();
  users_.connection_breaks(connection.node, node_learns && coordinator_learns);
  if (node_learns) tell_node(link, random_.between(0ms, 1s), "connection reset");
  if (coordinator_learns) tell_coordinator(link, random_.between(0ms, 1s), "connection reset");
}

void Network::repeat_something(int node, Way way) {
  const auto& arrived = arrived_[static_cast<std::size_t>(node)][static_cast<std::size_t>(way)];
  if (arrived.empty()) return;
  const std::string text =
      arrived[static_cast<std::size_t>(random_.between(0, static_cast<int>(arrived.size()) - 1))];
  for (const LinkId link : links_[static_cast<std::size_t>(node)]) {
    const Connection& connection = connections_.at(link);
    const bool open = connection.node_open && connection.coordinator_open && !connection.broken;
    if (open) return enqueue(link, way, text);
  }
}

void Network::heal_all() {
  harm_messages(0, 0);
  for (std::size_t node = 0; node < blocked_.size(); ++node) {
    for (const Way way : {Way::up, Way::down}) block(static_cast<int>(node), way, false);
  }
}

}  // namespace lockstep::sim
