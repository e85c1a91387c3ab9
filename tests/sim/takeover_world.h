#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "launch/fake_etcd.h"
#include "sim/event_queue.h"
#include "sim/random.h"
#include "sim/takeover_node.h"

namespace lockstep::sim {

struct TakeoverTally {
  int epochs = 0;
  int terms = 0;          // coordinators
  int recalled = 0;       // of those, that went on with an epoch of another
  int stepped_down = 0;   // that gave up because there was a later one
  int two_at_once = 0;    // times at which two nodes took themselves for the leader
  int held = 0;           // epochs that waited for etcd for more than a second
  int late = 0;           // requests that etcd served when nobody waited for them any more
  int lived_through = 0;  // workers that outlived the coordinator under which they began
  int succeeded = 0;
  int failed = 0;
};

/// A job whose nodes find their coordinator through etcd, in virtual time: nodes die, are cut off
/// from etcd, from each other or from both; etcd stalls, serves what was asked long ago, and loses
/// its data, but not while two
/// nodes take themselves for the leader: nothing could tell these apart afterwards
/// (docs/launcher.md).
///
/// Throws std::runtime_error when a rule is broken: no epoch has two memberships (but for those
/// before and after etcd lost its data), none is announced before its record is in etcd, a record
/// is not replaced by one of an earlier epoch, no node goes back to an earlier epoch or term,
/// workers start only where none are, and when nothing fails any more the job ends.
class TakeoverWorld {
 public:
  TakeoverWorld(std::uint64_t seed, bool trace);
  void run();
  const TakeoverTally& tally() const { return tally_; }

 private:
  using Node = TakeoverNode;
  using Link = TakeoverLink;

  // takeover_world.cpp: nodes and what happens to them
  void start(Node& node);
  void crash(Node& node);
  void exit_if_done(Node& node);
  void cause_fault();
  bool reaches(int one, int other) const;
  bool reaches_etcd(const Node& node) const;
  void after(Node& node, Time delay, std::function<void()> action);
  void note(const Node& node, const std::string& text) const;

  // takeover_links.cpp: what EtcdLink, CoordinatorShell and the network do
  void with_leadership(Node& node, Leadership::Actions actions);
  std::string ask_etcd(const EtcdRequest& request);
  void ask_etcd_late(const EtcdRequest& request);
  void lead(Node& node, const Lead& lead);
  void follow(Node& node, const Leader& leader);
  void drop_coordinator(Node& node);
  void check_touch(Node& node);
  void connect(Node& node);
  bool is_cut(Link& link) const;
  void break_link(LinkId id, bool node_learns, bool host_learns);
  void to_coordinator(Node& node, const Message& message);
  void to_node(Node& host, LinkId id, const Message& message);
  void with_coordinator(Node& node, Coordinator::Actions actions);
  void carry_out(Node& node, const CoordinatorAction& action);
  void check_announced(const Prepare& prepare);

  // takeover_workers.cpp: what NodeShell does
  void with_agent(Node& node, Agent::Actions actions);
  void start_workers(Node& node, const StartWorkers& start);
  void speak_or_end(Node& node, int local_rank, std::uint64_t number);
  void end_worker(Node& node, int local_rank, int code, int signal);
  void disconnected(Node& node, const std::string& reason);

  std::uint64_t seed_;
  bool trace_;
  Random random_;
  EventQueue queue_;
  FakeEtcd etcd_;
  bool etcd_is_up_ = true;
  bool faults_over_ = false;
  std::deque<Node> nodes_;
  std::set<int> cut_from_etcd_;
  std::set<std::pair<int, int>> cut_;  // pairs, the lower first
  std::map<LinkId, Link> links_;
  LinkId next_link_ = 1;
  JobTerms terms_;
  CoordinatorOptions coordinator_;
  Time work_end_{0};
  Time faults_end_{0};
  int starts_ahead_ = 0;
  struct Announced {
    Membership membership;
    int losses = 0;
    std::map<int, NodePlace> seats;  // by group rank, as far as they were announced
  };
  std::map<Epoch, Announced> announced_;
  int losses_ = 0;           // of etcd's data
  std::set<Epoch> in_etcd_;  // epochs whose record has been written
  Epoch record_epoch_ = 0;   // of the record that is there
  int record_losses_ = 0;    // when it was written
  TakeoverTally tally_;
};

}  // namespace lockstep::sim
