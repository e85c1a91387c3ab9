#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "sim/checks.h"
#include "sim/event_queue.h"
#include "sim/network.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "sim/trace.h"
#include "sim/training.h"

namespace lockstep::sim {

/// That one machine ever starts; workers have numbers of their own in the whole world.
inline constexpr int kMostProcesses = 100'000;

/// What every part of a simulated world shares.
struct Shared {
  const Scenario& scenario;
  EventQueue queue;
  Random random;
  Trace trace;
  Checks checks;
  Training training{queue, random};
  Network* network = nullptr;
  bool faults_over = false;
  int launchers = 0;                         // that live
  std::uint64_t visits = 0;                  // of coordinators that are gone
  int held_epochs = 0;                       // that waited for where records are kept
  std::function<void(Epoch)> worker_failed;  // tells all machines
  std::function<bool(const ProbeTarget&)> is_reached;
  std::function<void(const Membership&)> re_formed;  // tells all machines
};

/// A computer with one launcher process at a time: its agent, the coordinator where it is the first
/// one, and the workers. Does for the state machines what the launcher's event loop does.
class Machine {
 public:
  Machine(Shared& shared, int index);

  void start_process();
  /// The launcher dies; its keeper ends the workers. With the power gone, nobody is told.
  void crash(bool power_lost);
  void signal(int number);
  /// Who runs the coordinator asks for the end of the job, as the head of one does.
  void request_end(int number);
  /// A scheduler says that the job's time ends.
  void warn(std::optional<Time> time_left);
  /// Workers in the middle of a collective fail when another one did.
  void infect(Epoch epoch);
  /// A fault: one worker dies. False: there is none, or the job could not go on.
  bool kill_worker();
  /// The others go on without the workers whose places are left out.
  void doom_left_out(const Membership& membership);
  /// Whether the job can go on without this machine.
  bool is_dispensable() const;
  // What workers that train say.
  void worker_recovers(int worker, const RankRecovers& recovers);
  void worker_leaves(int worker);
  void worker_has_ended(int worker);

  const std::string& id() const { return id_; }
  bool alive() const { return agent_.has_value(); }
  bool listens() const { return coordinator_.has_value(); }
  bool awaits_connection(std::uint64_t attempt) const { return alive() && attempt_ == attempt; }
  int processes() const;
  /// Whether somebody whose own connection works finds this very process there.
  bool is_reached_at(const ProbeTarget& target) const;

  void connected(LinkId link);
  void connection_lost(const std::string& reason);
  void arrived(const std::string& text);
  void arrived_at_coordinator(LinkId link, const std::string& text);
  void lost_at_coordinator(LinkId link, const std::string& reason);

 private:
  struct Process {
    int number = 0;
    Epoch epoch = 0;
    int local_rank = 0;
    bool worker = true;  // or what a worker has left behind
    bool ignores_term = false;
    bool stuck = false;  // not even SIGKILL ends it
    bool killed = false;
    bool leaves_child = false;
    std::optional<Time> signalled;
    Epoch revoked = 0;  // the latest epoch that it has heard is being formed
    Epoch world = 0;    // the latest that it has heard is there
  };

  Time local_now() const;
  NodeInfo info() const;
  std::string address_in(const char* network) const;
  template <typename Call>
  void with_agent(const char* what, Call call, const Message* message = nullptr);
  template <typename Call>
  void with_coordinator(const char* what, Call call, const Message* message = nullptr);
  /// Runs `action` unless the process has died by then.
  void later(Time delay, std::function<void()> action);

  /// For what the sources beside machine.cpp have to tell the agent.
  void report(const char* what, const std::function<Agent::Actions(Agent&)>& call);

  // Questions about the network (machine_network.cpp).
  void answer(const Message& question);
  void probe(const ProbeNodes& probes);
  void tell_coordinator(const Message& message);

  void carry_out(const AgentAction& action);
  void carry_out(const CoordinatorAction& action);
  void open_store(const Membership& membership);
  void start_workers(const StartWorkers& start);
  void start_worker(const StartWorkers& start, int local_rank);
  /// How long a new worker takes to meet the others.
  Time time_to_load(bool joins);
  void fill_spares();
  void lose_spares();
  void continue_worker(const StartWorkers& start, Process& process);
  void revoke_workers(const RevokeWorkers& revoke);
  void arrive(int number, const StartWorkers& start);
  Process* find(int number);
  int worker_id(int number) const { return index_ * kMostProcesses + number; }
  void forget_processes();
  void signal_workers(int number);
  void end_process(int number, int code, bool was_started = true);
  void end_leftovers(bool gently);
  void arm_agent();
  void arm_coordinator();
  void start_coordinator();
  void write_log();
  void check();
  void count_processes();
  void exit_if_done();
  void process_is_gone();

  // machine_records.cpp
  void hold_new_epoch();
  void release_held();
  void carry_out_when_kept(const CoordinatorAction& action);

  Shared& shared_;
  const int index_;
  Clock clock_;
  std::string id_;
  int life_ = 0;  // of the launcher, and so of the coordinator
  std::optional<Agent> agent_;
  std::optional<Coordinator> coordinator_;
  bool coordinator_done_ = false;
  // What its coordinator has written to the disk, which outlives the process.
  std::optional<CoordinatorRecord> log_;
  std::uint64_t logged_version_ = 0;
  // What is not to be told before a record is kept.
  Epoch recorded_epoch_ = 0;
  bool is_held_ = false;
  std::vector<CoordinatorAction> held_;
  std::optional<Finish> finish_;
  std::optional<LinkId> link_;
  std::uint64_t attempt_ = 0;
  std::uint64_t agent_timer_ = 0;
  std::uint64_t coordinator_timer_ = 0;
  int leftovers_request_ = 0;
  int next_process_ = 1;
  std::vector<Process> processes_;
  std::map<int, Time> kills_;                  // faults, by local rank
  int spares_ = 0;                             // that wait
  int spares_life_ = 0;                        // none of an earlier one comes
  std::map<LinkId, std::string> ids_by_link_;  // at the coordinator
  Time heard_{0};                              // local; of the coordinator
  int stop_signals_ = 0;
  int probe_port_ = 0;   // where it answers probes; 0: nowhere
  Epoch re_formed_ = 0;  // the last epoch of its coordinator of which all machines were told
  // When it last started workers:
  int group_rank_ = 0;
  int first_place_ = 0;
};

}  // namespace lockstep::sim
