#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "core/subprocess.h"
#include "launch/agent.h"
#include "launch/console.h"
#include "launch/coordinator_link.h"
#include "launch/event_loop.h"
#include "launch/hang_watch.h"
#include "launch/job_plan.h"
#include "launch/keeper.h"
#include "launch/log_pump.h"
#include "launch/network_desk.h"
#include "launch/node_store.h"
#include "launch/run_directory.h"
#include "launch/spare_pool.h"
#include "launch/stack_desk.h"
#include "launch/stop_signals.h"
#include "launch/store_forwarder.h"
#include "launch/straggler_watch.h"
#include "launch/time_left.h"
#include "launch/worker_group.h"
#include "launch/worker_hub.h"

namespace lockstep {

/// What a node needs from around it. All outlive it.
struct NodeServices {
  EventLoop& loop;
  Keeper& keeper;
  LogPump& pump;
  SignalInbox& signals;
  LogLayout& layout;
  EventLog& events;
  Console& console;
  RunDirectory& directory;
  int lifeline = -1;  // a descriptor whose end means that whoever started this is gone; -1: none
};

/// Runs one node of a job: carries out what the agent decides, with real processes, sockets and
/// time, and tells it what happens.
class NodeShell {
 public:
  /// Opens the coordinator's port where this node hosts it; see make_coordinator_link().
  NodeShell(JobPlan& plan, const NodeServices& services);
  ~NodeShell();
  NodeShell(const NodeShell&) = delete;
  NodeShell& operator=(const NodeShell&) = delete;

  /// Runs the job to its end on this node and returns how it ended.
  Finish run();

  /// Whether that was the coordinator's word, which all nodes have heard.
  bool heard_end() const { return heard_end_; }

 private:
  void perform(Agent::Actions actions);
  void carry_out(const Connect&);
  void carry_out(const Disconnect&);
  void carry_out(const Send& send);
  void carry_out(const OpenStore& open);
  void carry_out(const StartWorkers& start);
  void carry_out(const RevokeWorkers& revoke);
  void carry_out(const NoteRecovered& note);
  void carry_out(const SignalWorkers& signal);
  void carry_out(const TellWorkers& tell);
  void carry_out(const EndLeftovers& end);
  void carry_out(const AgentSays& says);
  void carry_out(const AgentDone& done);

  CoordinatorLink::Callbacks link_callbacks();
  StoreForwarder::Callbacks forwarder_callbacks();
  /// --store local, and the store is on another node.
  bool forwards_store() const;
  WorkerHub::Callbacks hub_callbacks();
  void use_network_of(const Membership& membership);
  void announce_world(const StartWorkers& start);
  void on_recovers(int slot, const WorkerRecovers& recovers);
  void on_rejected(int slot, const WorkerRejected& rejected);
  std::optional<SlotPlace> place_of(pid_t pid) const;
  void fill_spares();
  std::string progress_of(int slot) const;
  /// Of the ranks that workers name in the world that they are in.
  std::vector<int> places_of(const std::vector<int>& ranks) const;
  int local_rank_of(int slot) const { return slot - membership_.self.first_rank; }
  // node_hangs.cpp: workers that stand still
  struct Hang;
  void watch_for_hangs();
  std::optional<Hang> hang_of(std::uint64_t id, const WorkerGroup::Worker& worker) const;
  void look_into_hang(const Hang& hang);
  void end_hang(const Hang& hang);
  void on_progress(int slot, const WorkerHeartbeat& beat);
  void forget_progress(int slot);
  void watch_for_stragglers();
  void note(const std::string& text);
  void write_job(const Membership& membership);
  void on_keeper();
  void watch_keeper();
  void note_failure(const WorkerEnd& end);
  void await_leftovers();
  void on_keeper_lost(const std::string& how);
  // node_signals.cpp: signals, and the time that is left
  void on_signal();
  std::optional<Time> time_left() const;
  void tell_time_left(int slot);
  void pass_to_workers(int signal);
  void pass_owed_signals();
  void watch_lifeline();
  void attempt(const std::function<void()>& action);
  void on_broken(const std::string& reason);
  void post(std::function<void()> call);
  void set_timer();
  void stop_if_over();

  JobPlan& plan_;
  NodeServices services_;
  std::unique_ptr<CoordinatorLink> link_;
  NodeStore store_;
  StoreForwarder forwarder_;
  SparePool spares_;
  WorkerGroup workers_;
  WorkerHub hub_;
  StackDesk stack_desk_;
  NetworkDesk network_desk_;
  std::optional<Agent> agent_;
  JobRecord record_;
  Membership membership_;  // of the workers
  EventLoop::TimerId timer_{};
  std::uint64_t leftovers_request_ = 0;
  EventLoop::TimerId leftovers_poll_{};
  EventLoop::TimerId hang_timer_{};
  EventLoop::Clock::time_point hang_check_;   // the last one
  EventLoop::Clock::time_point hangs_since_;  // silence before this was our own
  HangWatch hang_watch_;
  StragglerWatch straggler_watch_;
  EventLoop::TimerId straggler_timer_{};
  std::optional<Subprocess> hang_search_;  // for the stack of one that hangs
  std::set<std::uint64_t> hung_;           // workers that were found, by id
  TimeLeftFinder time_left_finder_;
  std::map<std::uint64_t, std::set<int>>
      owed_signals_;             // to workers, by id, that are being started
  std::optional<Time> ends_at_;  // the scheduler's end of the job, once it has warned
  bool heard_end_ = false;
  bool keeper_lost_ = false;
  bool keeper_pending_ = false;
  EventLoop::TimerId keeper_patience_{};
  std::optional<Finish> finish_;
};

}  // namespace lockstep
