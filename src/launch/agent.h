#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launch/messages.h"
#include "launch/reach.h"

namespace lockstep {

struct AgentOptions {
  NodeInfo self;
  JobTerms terms;
  bool hosts_coordinator = false;
  std::string coordinator;             // where it is, for people
  bool coordinator_may_return = true;  // somebody may start one again when it is gone
  // Without a word of it the node stops its workers after this; 0: after the terms' beat_limit.
  Time apart_limit{0};
  Time grace = std::chrono::seconds(30);  // from the first signal to SIGKILL, on every path
  Time join_timeout = std::chrono::seconds(600);
  // For a coordinator of which there has never been a sign; 0: as long as any other.
  Time start_timeout{0};
  // A scheduler starts all nodes: where nothing listens now, nobody will.
  bool nodes_start_together = false;
  Time retry_interval = std::chrono::milliseconds(500);
  Time status_interval = std::chrono::seconds(5);
};

/// How one worker ended, and what is needed to report it.
struct WorkerEnd {
  Epoch epoch = 0;  // in which it was started
  int local_rank = 0;
  int code = 0;          // 0: success; else the exit code, or 128 + signal
  std::string details;   // a WorkerFailure as JSON; empty on success
  int signal = 0;        // what ended it; 0: it ended by itself
  std::string progress;  // how far it was, for people; empty where it has not said
  bool started = true;   // false: the system refused to start it
};

// What the agent asks its shell for.

struct Connect {};
struct Disconnect {};
struct Send {
  Message message;
};
/// Open a fresh store for the epoch, for these nodes only, or this node's way to it. Answered by
/// on_store_open().
struct OpenStore {
  Membership membership;
};
/// Of this node: all of them; or, where workers are carried over, only those that are replaced, and
/// the others hear of their new world.
struct StartWorkers {
  Membership membership;
  std::string master_addr;
  int master_port = 0;
  bool carries_over = false;
  bool begins = false;        // this node had no workers in the epoch before
  std::vector<int> replaced;  // places, of all nodes
};
/// Those that live on are told to give up what waits for the lost ones; the others are killed, and
/// what they have started.
struct RevokeWorkers {
  Epoch epoch = 0;  // that is being formed
  std::string reason;
  std::vector<int> lost;       // places, of all nodes, whose workers are no more
  std::vector<int> left_out;   // of those, that nobody fills
  std::vector<int> rejoins;    // places that had been left out, and are filled again
  std::vector<int> survivors;  // local ranks
  std::vector<int> killed;     // local ranks, of processes that still run
};
/// For the record: all ranks go on.
struct NoteRecovered {
  Recovered recovered;
};
struct SignalWorkers {
  int signal = 0;
};
/// A signal that the scheduler or a user sent, and the time that is left where it is known. Unlike
/// SignalWorkers it asks for nothing.
struct TellWorkers {
  int signal = 0;  // 0: they have had it
  std::optional<Time> time_left;
};
/// End every process that is left of the workers and of what they started. Answered by
/// on_all_gone().
struct EndLeftovers {
  bool gently =
      false;  // wait for them to end by themselves; another one will say when not any more
};
struct AgentSays {
  std::string text;
};
struct AgentDone {
  Finish finish;
};

using AgentAction =
    std::variant<Connect, Disconnect, Send, OpenStore, StartWorkers, RevokeWorkers, NoteRecovered,
                 SignalWorkers, TellWorkers, EndLeftovers, AgentSays, AgentDone>;

/// One node of a job: keeps in touch with the coordinator, starts and stops this node's workers as
/// it is told, and stops them by itself when it is cut off. One per launcher process.
///
/// Like Coordinator it has no clock, socket or process of its own.
///
/// Every slot (a worker's place; here by local rank) has a life of its own: started, ended by
/// itself, or stopped. Restarting all workers is replacing every slot at once.
class Agent {
 public:
  using Actions = std::vector<AgentAction>;

  Agent(const AgentOptions& options, Time now);

  /// Call once, first.
  Actions start();

  /// Before a connection to another coordinator than before: in the same process, or elsewhere.
  void set_coordinator(const std::string& where, bool here);

  Actions on_connected(Time now);
  /// `reach` is how far an attempt to connect has come, where it failed.
  Actions on_disconnected(const std::string& reason, Time now, Reach reach = Reach::heard);
  Actions on_message(const Message& message, Time now);
  Actions on_store_open(Epoch epoch, int port, Time now);
  Actions on_worker_end(const WorkerEnd& end, Time now);
  /// The worker has the job's state in this epoch and can be carried into another; or not any more.
  Actions on_worker_recovers(int local_rank, const RankRecovers& recovers, Time now);
  /// It says that it ends by itself.
  Actions on_worker_leaving(int local_rank, Time now);
  Actions on_ranks_rejected(const RanksRejected& rejected, Time now);
  Actions on_all_gone(Time now);
  /// Processes that SIGKILL has not ended yet, named in `text`.
  Actions on_stuck(const std::string& text, Time now);
  /// A signal that asks the job to stop. The second one does not wait any longer.
  Actions on_stop_signal(int signal, const std::string& name, Time now);
  /// One that is meant for the workers of the whole job. It reaches this node's by way of the
  /// coordinator, so that they get it once however many nodes got it.
  Actions on_signal_for_workers(const PassSignal& signal, Time now);
  /// Something in the shell cannot go on (the store's port, the keeper).
  Actions on_broken(const std::string& reason, Time now);

  Actions on_time(Time now);
  Time next_deadline() const;

  NodePhase phase() const { return phase_; }
  Epoch epoch() const { return membership_.epoch; }
  bool done() const { return done_; }

 private:
  enum class SlotState { empty, running, succeeded, failed, stopped, left_out };
  struct Slot {
    SlotState state = SlotState::empty;
    Epoch started = 0;                     // the epoch in which its process was started
    bool has_state = false;                // the job's: it can be carried over
    bool is_replaced = false;              // or left out, in the epoch that is being formed
    bool goes_on = false;                  // it has shown its state in the current epoch
    std::optional<RankRecovers> recovers;  // in the current epoch
  };

  void handle(const Refused& refused);
  void handle(const Status& status);
  void handle(const Prepare& prepare);
  void handle(const Start& start);
  void handle(const Stop& stop);
  void handle(const Finish& finish);
  void handle(const Recovered& recovered);
  void handle(const PassSignal& signal);
  void handle(const Beat&) {}

  void reform(const Prepare& prepare);
  void begin_among_others(const Prepare& prepare);
  RevokeWorkers revocation(const Prepare& prepare) const;
  /// Whether the slot's worker is awaited in an epoch that replaced some, and will not come.
  bool is_missing(const Slot& slot) const;
  void refuse_missing();
  void ready_if_prepared();
  void continue_workers(const Start& start);
  void start_workers(const Start& start);
  void fail(Slot& slot, const WorkerEnd& end);
  void withdraw(int local_rank);
  int rank_of(int local_rank) const { return membership_.self.first_rank + local_rank; }
  bool has_workers() const {
    return phase_ == NodePhase::running || phase_ == NodePhase::reforming;
  }

  void begin_stop(int signal);
  void kill_now();
  void stopped_if_gone();
  void give_up();
  void all_stopped();
  /// Stops the workers first, where there are any.
  void end_with(const Finish& ending);
  void finish(const Finish& finish);
  void leave(int signal, const std::string& reason);
  void lost_touch();
  void note_reach(Reach reach);
  std::optional<Time> time_left_in_vain() const;
  Time apart_limit() const;
  /// Whether the end is decided, and nothing more is to be heard about it.
  bool goes() const { return done_ || (ending_ && !awaits_end_); }
  bool opens_store() const { return membership_.group_rank == 0 || options_.terms.local_store; }
  bool any_running() const;
  std::vector<int> ranks_in(SlotState state) const;
  Join join() const;
  void send(const Message& message);
  Actions take() { return std::move(actions_); }

  AgentOptions options_;
  NodePhase phase_ = NodePhase::idle;
  Membership membership_;  // of the current or last epoch
  std::vector<Slot> slots_;
  std::vector<WorkerFailed> failures_;  // of this epoch; age is filled in when sent
  std::map<int, Time> failed_at_;       // by rank
  int store_port_ = 0;
  bool ready_ = false;         // said so, in this epoch
  bool carries_over_ = false;  // the epoch being formed, or the current one, took workers over
  bool begins_ = false;        // none of this node, where it has not started any yet
  std::vector<int> replaced_;  // places that it fills with new ones

  bool connected_ = false;
  bool in_touch_ = false;  // has heard the coordinator since the start or the last loss
  Time apart_since_{0};    // since when not in touch
  std::string apart_reason_;
  bool was_in_touch_ = false;  // ever
  Time heard_{0};
  bool in_vain_ = false;  // there was no sign of it when it was last tried
  Time last_sign_{0};     // or the start
  std::optional<Time> retry_at_;
  Time next_beat_{0};
  Time next_status_{0};

  std::optional<Time> kill_at_;  // while stopping
  bool signalled_ = false;       // workers were asked to end, and may have passed it on
  bool killed_ = false;
  bool resume_ = false;             // a worker ended with 75 when it was asked to
  std::optional<Time> give_up_at_;  // on processes that do not end
  std::string stuck_;               // their names
  std::string last_status_;         // of the coordinator, that was said
  bool leftovers_asked_ = false;
  Epoch stopped_through_ = 0;  // what the coordinator wants to hear about
  int stop_signals_ = 0;
  std::optional<Finish> ending_;   // decided; carried out when no worker is left
  bool leaves_by_signal_ = false;  // that is why it ends
  bool awaits_end_ = false;        // the coordinator will say more about it
  bool done_ = false;
  Time now_{0};
  Actions actions_;
};

}  // namespace lockstep
