#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {

inline JobTerms fixed(int nodes, int restarts = 0) {
  return {.run_id = "job", .min_nodes = nodes, .max_nodes = nodes, .max_restarts = restarts};
}
inline JobTerms elastic(int least, int most, int restarts = 0) {
  return {.run_id = "job", .min_nodes = least, .max_nodes = most, .max_restarts = restarts};
}

inline NodeInfo node_info(const std::string& id, int workers = 1,
                          std::optional<int> node_rank = std::nullopt) {
  // "b" is on host b at 10.0.0.2.
  return {.id = id,
          .host = id.substr(0, 1),
          .address = concat("10.0.0.", id[0] - 'a' + 1),
          .node_rank = node_rank,
          .workers = workers,
          .role = "default",
          .pid = 1};
}

/// Drives a coordinator by hand. Node "a" has link 1, "b" link 2, and so on; "a" hosts it.
class CoordinatorDriver {
 public:
  explicit CoordinatorDriver(const JobTerms& terms, Time last_call = std::chrono::seconds(30)) {
    options_.terms = terms;
    options_.last_call = last_call;
  }

  CoordinatorOptions& options() { return options_; }
  Coordinator& coordinator() {
    if (!coordinator_) coordinator_.emplace(options_, now_);
    return *coordinator_;
  }
  Coordinator::Phase phase() { return coordinator().phase(); }
  Time now() const { return now_; }

  static LinkId link_of(const std::string& id) { return static_cast<LinkId>(id[0] - 'a' + 1); }

  Join join_of(const NodeInfo& info) const {
    Join join;
    join.node = info;
    join.terms = options_.terms;
    join.hosts_coordinator = info.id == "a";
    return join;
  }
  void join(const std::string& id, int workers = 1, std::optional<int> node_rank = std::nullopt) {
    tell(id, join_of(node_info(id, workers, node_rank)));
  }
  /// Comes back over another connection and says where it stands.
  void rejoin(const std::string& id, LinkId link, NodePhase phase, Epoch epoch,
              std::vector<WorkerFailed> failures = {}) {
    Join join = join_of(node_info(id));
    join.phase = phase;
    join.epoch = epoch;
    join.failures = std::move(failures);
    perform(coordinator().on_message(link, join, now_));
  }
  void tell(LinkId link, const Message& message) {
    perform(coordinator().on_message(link, message, now_));
  }
  void tell(const std::string& id, const Message& message) { tell(link_of(id), message); }
  void close(const std::string& id) {
    perform(coordinator().on_closed(link_of(id), "connection reset", now_));
  }

  void request_end(int signal, const std::string& reason) {
    perform(coordinator().on_end_request(signal, reason, now_));
  }

  /// Lets time pass, with beats of these nodes so that they do not count as silent.
  void pass(Time time, const std::vector<std::string>& alive = {}) {
    const Time end = now_ + time;
    while (now_ < end) {
      now_ = std::min(end, now_ + std::chrono::milliseconds(500));
      for (const std::string& id : alive) tell(id, Beat{});
      if (coordinator().next_deadline() <= now_) perform(coordinator().on_time(now_));
    }
  }

  /// From joining to running workers.
  void start(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) join(id);
    ready(ids);
  }
  void ready(const std::vector<std::string>& ids) {
    const Epoch epoch = coordinator().epoch();
    for (const std::string& id : ids) tell(id, Ready{epoch, 29500});
  }
  void stopped(const std::vector<std::string>& ids) {
    const Epoch epoch = coordinator().epoch();
    for (const std::string& id : ids) tell(id, Stopped{epoch, {}});
  }
  WorkerFailed failure(int rank, int code, Time age = Time(0)) {
    return {
        .epoch = coordinator().epoch(), .rank = rank, .code = code, .age = age, .details = "{}"};
  }

  /// The last message of this kind to a link.
  template <typename Kind>
  std::optional<Kind> last(LinkId link) const {
    std::optional<Kind> found;
    for (const SendTo& sent : sent_) {
      if (sent.link != link) continue;
      if (const auto* kind = std::get_if<Kind>(&sent.message)) found = *kind;
    }
    return found;
  }
  template <typename Kind>
  std::optional<Kind> last(const std::string& id) const {
    return last<Kind>(link_of(id));
  }
  bool closed(LinkId link) const {
    return std::find(closed_.begin(), closed_.end(), link) != closed_.end();
  }
  bool done() const { return done_; }
  std::string said() const { return said_; }
  const std::vector<NodeChange>& node_changes() const { return node_changes_; }
  void forget_messages() { sent_.clear(); }

 private:
  void perform(const Coordinator::Actions& actions) {
    for (const CoordinatorAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) sent_.push_back(*send);
      if (const auto* close = std::get_if<CloseLink>(&action)) closed_.push_back(close->link);
      if (const auto* say = std::get_if<Say>(&action)) {
        if (!say->text.empty()) said_ += say->text + "\n";
        if (say->change) node_changes_.push_back(*say->change);
      }
      if (std::holds_alternative<CoordinatorDone>(action)) done_ = true;
    }
  }

  CoordinatorOptions options_;
  std::optional<Coordinator> coordinator_;
  Time now_ = std::chrono::hours(100);  // clocks start anywhere
  std::vector<SendTo> sent_;
  std::vector<LinkId> closed_;
  std::string said_;
  std::vector<NodeChange> node_changes_;
  bool done_ = false;
};

/// Drives an agent by hand and remembers what it asked for.
class AgentDriver {
 public:
  explicit AgentDriver(const JobTerms& terms = fixed(2), int workers = 1, bool hosts = false) {
    options_.self = node_info("b", workers);
    options_.terms = terms;
    options_.hosts_coordinator = hosts;
    options_.coordinator = "a:29400";
  }

  AgentOptions& options() { return options_; }
  Agent& agent() {
    if (!agent_) {
      agent_.emplace(options_, now_);
      perform(agent_->start());
    }
    return *agent_;
  }
  Time now() const { return now_; }

  void connect() { perform(agent().on_connected(now_)); }
  void disconnect(Reach reach = Reach::heard) {
    perform(agent().on_disconnected("connection reset", now_, reach));
  }
  void hear(const Message& message) { perform(agent().on_message(message, now_)); }
  void end_worker(int local_rank, int code) {
    perform(agent().on_worker_end(
        {.epoch = agent().epoch(), .local_rank = local_rank, .code = code, .details = "{}"}, now_));
  }
  void all_gone() { perform(agent().on_all_gone(now_)); }
  void stuck() { perform(agent().on_stuck("worker 7 cannot be killed", now_)); }
  void broken() { perform(agent().on_broken("the store's port is taken", now_)); }
  void signal(int number) { perform(agent().on_stop_signal(number, "SIGINT", now_)); }
  void store_open(Epoch epoch, int port) { perform(agent().on_store_open(epoch, port, now_)); }

  /// `hears`: the coordinator beats all the while.
  void pass(Time time, bool hears) {
    const Time end = now_ + time;
    while (now_ < end) {
      now_ = std::min(end, now_ + std::chrono::milliseconds(500));
      if (hears) hear(Beat{});
      if (agent().next_deadline() <= now_) perform(agent().on_time(now_));
    }
  }

  /// The process stands still for a while.
  void jump(Time time) {
    now_ += time;
    perform(agent().on_time(now_));
  }

  Membership membership(Epoch epoch, int group_rank = 1) const {
    const int workers = options_.self.workers;
    const std::vector<NodePlace> nodes = {
        {.host = "a", .address = "10.0.0.1", .workers = workers, .first_rank = 0},
        {.host = "b", .address = "10.0.0.2", .workers = workers, .first_rank = workers}};
    return {.epoch = epoch,
            .restart_count = 0,
            .group_rank = group_rank,
            .group_world_size = 2,
            .places = 2 * workers,
            .first_role_rank = group_rank * workers,
            .role_world_size = 2 * workers,
            .self = nodes[static_cast<std::size_t>(group_rank)],
            .nodes = group_rank == 0 ? nodes : std::vector<NodePlace>{}};
  }
  /// From the start to running workers of this epoch.
  void run_workers(Epoch epoch) {
    connect();
    hear(Prepare{membership(epoch)});
    hear(Start{epoch, "10.0.0.1", 29500});
  }

  template <typename Kind>
  std::vector<Kind> asked() const {
    std::vector<Kind> found;
    for (const AgentAction& action : actions_) {
      if (const auto* kind = std::get_if<Kind>(&action)) found.push_back(*kind);
    }
    return found;
  }
  template <typename Kind>
  std::vector<Kind> sent() const {
    std::vector<Kind> found;
    for (const Send& send : asked<Send>()) {
      if (const auto* kind = std::get_if<Kind>(&send.message)) found.push_back(*kind);
    }
    return found;
  }
  std::optional<Finish> finish() const {
    const auto done = asked<AgentDone>();
    return done.empty() ? std::nullopt : std::optional(done.back().finish);
  }
  void forget_actions() { actions_.clear(); }

  void perform(const Agent::Actions& actions) {
    actions_.insert(actions_.end(), actions.begin(), actions.end());
  }

 private:
  AgentOptions options_;
  std::optional<Agent> agent_;
  Time now_ = std::chrono::hours(7);
  std::vector<AgentAction> actions_;
};

}  // namespace lockstep
