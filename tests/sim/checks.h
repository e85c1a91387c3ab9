#pragma once

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "launch/messages.h"
#include "lockstep/error.h"
#include "sim/scenario.h"
#include "sim/warnings.h"

namespace lockstep::sim {

/// A rule was broken.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw Violation(concat(parts...));
}

/// What was reached in a run, to see that the simulation is not idle.
struct Tally {
  int epochs = 0;
  int restarts = 0;
  int recoveries = 0;        // of worlds in which somebody had state
  int left_out = 0;          // places
  int rejoined = 0;          // of those
  int reseated = 0;          // nodes that came in place of lost ones, while others went on
  int rejoined_at_work = 0;  // connected again with its workers running
  int coordinators = 0;
  int recalled = 0;   // of those, went on where the one before stood
  int succeeded = 0;  // jobs
  int failed = 0;
  int refused = 0;
  int warned = 0;  // nodes, of the end of their time

  Tally& operator+=(const Tally& other);
};

/// The rules that hold at every event, seen by somebody who sees all nodes at once. A coordinator's
/// life is that of its process; a rule about epochs holds within a life, and beyond it as far as
/// the nodes could tell the new coordinator.
class Checks {
 public:
  explicit Checks(const Scenario& scenario) : scenario_(scenario) {}

  // The coordinator.
  struct CoordinatorView {
    Coordinator::Phase phase = Coordinator::Phase::gathering;
    Epoch epoch = 0;
    int restarts = 0;
    int replacements = 0;
    bool at_work = false;  // there are workers, and they are not being stopped
    bool holds_loss = false;
    int left_out = 0;  // of nodes that are there
    bool recalls = false;

    explicit CoordinatorView(const Coordinator& coordinator)
        : phase(coordinator.phase()),
          epoch(coordinator.epoch()),
          restarts(coordinator.restarts()),
          replacements(coordinator.replacements()),
          at_work(phase == Coordinator::Phase::running || coordinator.is_reforming()),
          holds_loss(coordinator.holds_loss()),
          left_out(coordinator.left_out_with_node()),
          recalls(coordinator.recalls()) {}
    bool operator==(const CoordinatorView&) const = default;
  };
  /// `record` is what it was given of the one before.
  void coordinator_started(int life, const std::optional<CoordinatorRecord>& record,
                           Time local_now);
  /// What the coordinator was before an event in which it began to go on from its record: as the
  /// record says. Else it is `before`.
  CoordinatorView recalled(const CoordinatorView& before, const CoordinatorView& after,
                           const Message* message, Time local_now);
  void coordinator_heard(const Message& message, const CoordinatorView& before,
                         const CoordinatorView& after);
  void coordinator_acted(const CoordinatorView& before, const CoordinatorView& after,
                         Time local_now);
  void coordinator_said(const std::string& text);
  void coordinator_sent(const std::string& node_id, const Message& message, Time local_now);
  /// What follows a join once the job is over.
  void join_answered_at_end(bool answered);

  // A node.
  struct AgentView {
    NodePhase phase = NodePhase::idle;
    Epoch epoch = 0;
    bool done = false;
    bool operator==(const AgentView&) const = default;
  };
  void agent_heard(const std::string& id, const Message& message, const AgentView& before,
                   const AgentView& after);
  void agent_moved(const std::string& id, const AgentView& before, const AgentView& after);
  void store_opened(const std::string& id, Epoch epoch, int port);
  struct WorkersStart {
    std::string id;
    bool link_is_open;  // also in the eyes of the coordinator
    int processes;      // that are already there
  };
  void workers_started(const WorkersStart& node, const StartWorkers& start);
  void worker_succeeded(const std::string& id, Epoch epoch);
  /// Of a worker, in the node's own time.
  struct WorkerTimes {
    Time silence;  // of the coordinator
    std::optional<Time> since_signal;
    bool stuck;
  };
  void second_stop_signal(const std::string& id, int spared);
  void worker_runs(const std::string& id, const WorkerTimes& times);
  void agent_done(const std::string& id, const Finish& finish, int processes);
  void workers_warned() { ++tally_.warned; }

  // What keeps a node from ending as the job does.
  void connection_breaks(const std::string& id, bool both_learn);
  void goes_by_itself(const std::string& id) { excused_.insert(id); }
  void coordinator_died() { told_.clear(); }
  /// What workers that train cannot be saved from: one died, is left out, or is told of another
  /// world, when all had come to the end, and the others go. Then, and only then, the coordinator
  /// may say that the job cannot go on in place.
  void ends_without_one() { ends_without_one_ = true; }

  // The end.
  void time_limit_passed(const std::string& who_is_left);

  /// So that Prepare can be checked against what the node is doing.
  std::map<std::string, int>& processes_of() { return processes_; }
  const Tally& tally() const { return tally_; }
  int life() const { return life_; }

 private:
  struct Formed {
    Membership common;               // what all are told alike
    std::map<int, NodePlace> seats;  // by group rank, as far as it has been said
    std::set<int> carried;           // seats that are known from the epoch before alone
    std::vector<int> left_out_before;
    std::string store_address;      // of group rank 0
    std::set<std::string> members;  // ids
    std::set<std::string> awaited;  // members with workers that have not prepared
    std::map<int, std::string> ids;
    std::map<std::string, int> succeeded;    // workers
    std::map<std::string, int> store_ports;  // by node id
    bool carries_over = false;
    std::set<int> replaced;
    bool is_last = false;
  };

  Formed& current(Epoch epoch);
  void take_over_epoch(Epoch epoch);
  void cost_restart(const CoordinatorView& before, const CoordinatorView& after);
  void check_membership(const Membership& membership) const;
  void check_network(const Membership& membership) const;
  void check_new_epoch(const Prepare& prepare, Time local_now);
  void check_seat(Formed& formed, int group_rank, const NodePlace& place) const;
  void check_reformed(const Prepare& prepare, const Formed& before, Time local_now);
  void check_rejoining(const CoordinatorView& view, Time local_now) const;
  void check_success() const;
  bool is_stranger(const std::string& node_id) const;
  bool must_go_on() const { return scenario_.must_survive && !(ends_without_one_ && said_why_); }

  const Scenario& scenario_;
  int life_ = 0;
  std::optional<CoordinatorRecord> record_;  // that nobody has asked for yet
  bool recalled_now_ = false;                // in this event
  Epoch told_epoch_ = 0;
  int told_restarts_ = 0;
  Epoch last_epoch_ = 0;  // of this life
  Time last_epoch_since_{0};
  std::map<int, Time> left_out_since_;  // by place
  bool one_ends_ = false;               // so a worker of the last epoch has said
  Time gathering_since_{0};
  std::map<std::pair<int, Epoch>, Formed> formed_;  // by life and epoch
  std::set<std::pair<int, Epoch>> cost_restart_;    // by life and epoch
  std::optional<Finish> finish_;                    // of this life
  Warnings warnings_;                               // likewise
  bool succeeded_once_ = false;
  bool ends_without_one_ = false;
  bool said_why_ = false;                     // the job cannot go on in place
  std::map<std::string, int> processes_;      // by node id
  std::map<std::string, int> told_;           // the end; and how often its connection broke since
  std::set<std::string> excused_;             // from ending as the job does
  std::map<std::string, int> started_under_;  // which coordinator, by node id
  Tally tally_;
};

}  // namespace lockstep::sim
