#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

/// Monotonic time of one machine, since an origin that means nothing elsewhere. Such times never
/// travel between machines; ages do.
using Time = std::chrono::nanoseconds;

/// For people.
inline std::int64_t whole_seconds(Time duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

/// The exit code of a worker that has saved and wants to be started again: the program's own word,
/// which a restart here would overrule.
inline constexpr int kResumeCode = 75;

/// Numbers the memberships of a job from 1; 0 is none. It grows with every membership, whatever the
/// reason, unlike torchrun's restart count.
using Epoch = std::uint64_t;

/// What a node's workers run, so that a stale copy on one of them is found before it is started.
struct ProgramIdentity {
  std::string name;       // of the file; empty: not known
  std::string digest;     // of its contents; empty: not known
  std::string arguments;  // a digest of them, because they may hold what is nobody's business

  bool operator==(const ProgramIdentity&) const = default;
};

/// What a node says about itself. The id is new with every process of the launcher.
struct NodeInfo {
  std::string id;
  std::string host;     // for people
  std::string address;  // numeric, where the other nodes reach it
  std::string seen_at;  // where its link comes from, which the coordinator's end fills in
  std::optional<int> node_rank;
  int workers = 1;
  std::string role = "default";
  std::int64_t pid = 0;
  std::string version;  // of lockstep
  ProgramIdentity program;

  bool operator==(const NodeInfo&) const = default;
};

/// What all nodes of a job must have been told alike.
struct JobTerms {
  std::string run_id;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  int max_replacements = 0;  // of workers, in place; 0: none is replaced without the others
  int min_world = 0;         // the job may go on with so few workers; 0: never without one of them
  bool local_store = false;  // each node's workers reach the store through their own agent
  // How often nodes are heard of, and the silence after which one counts as lost.
  Time beat_interval = std::chrono::seconds(1);
  Time beat_limit = std::chrono::seconds(6);

  bool elastic() const { return min_nodes < max_nodes; }
  /// Whether workers may outlive others.
  bool in_place() const { return max_replacements > 0 || min_world > 0; }
  bool operator==(const JobTerms&) const = default;
};

/// A worker that ended badly by itself, not because the launcher stopped it.
struct WorkerFailed {
  Epoch epoch = 0;
  int rank = 0;
  int code = 1;          // what `lockstep run` exits with: the exit code, or 128 + signal
  int signal = 0;        // what ended it; 0: it ended by itself
  bool started = true;   // false: the system refused to start its process
  Time age{0};           // how long ago it was when this was sent
  std::string details;   // a WorkerFailure as JSON, for the report
  std::string progress;  // how far it was, where it said so; for people

  bool operator==(const WorkerFailed&) const = default;
};

/// One node of a membership, as everyone sees it.
struct NodePlace {
  std::string host;
  std::string address;
  std::string seen_at;  // see NodeInfo; empty: as the address
  int workers = 1;
  int first_rank = 0;

  bool operator==(const NodePlace&) const = default;
};

/// A node's place in an epoch, and as little about the others as it needs: what a node is sent does
/// not grow with the job.
///
/// A place is a worker's position in the job, and what messages between nodes call its rank: it
/// stays the same as long as workers are carried over. Some may be left out of an epoch; the
/// workers of the others number themselves without gaps (rank_of()).
struct Membership {
  Epoch epoch = 0;
  int restart_count = 0;
  int group_rank = 0;
  int group_world_size = 1;  // nodes
  int places = 1;
  int first_role_rank = 0;  // among those that are in, as the next
  int role_world_size = 1;
  NodePlace self = {};
  // All nodes, in the order of their group ranks: for group rank 0 alone, whose store lets them in.
  std::vector<NodePlace> nodes = {};
  std::vector<int> left_out = {};  // places without a worker, in order

  bool is_in(int place) const;
  int world_size() const { return places - static_cast<int>(left_out.size()); }
  /// What the worker of a place that is in calls its rank.
  int rank_of(int place) const;
  /// The place of a worker's rank; std::nullopt where no worker has it.
  std::optional<int> place_of(int rank) const;
  /// Workers of this node that are in, below this local rank; by default all of them.
  int local_workers(std::optional<int> below = std::nullopt) const;
  bool operator==(const Membership&) const = default;
};

/// How far a node has come in its epoch. Re-forming: it goes from one epoch to the next and keeps
/// its workers but for those that are replaced.
enum class NodePhase { idle, prepared, running, succeeded, stopping, reforming };

// From a node to the coordinator.

/// A worker of this rank has the job's state, as all of this epoch have it, and can be carried into
/// the next one; or (not able) it cannot any more.
struct RankRecovers {
  Epoch epoch = 0;
  int rank = 0;
  std::int64_t step = 0;  // committed
  bool able = true;

  bool operator==(const RankRecovers&) const = default;
};

/// Asks to take part, and after a broken connection says where the node stands, so that nothing
/// depends on messages that were lost.
struct Join {
  NodeInfo node;
  JobTerms terms;
  bool hosts_coordinator = false;
  NodePhase phase = NodePhase::idle;
  Epoch epoch = 0;                     // whose workers it has or had
  int restart_count = 0;               // of that epoch
  bool ready = false;                  // it has said Ready
  int store_port = 0;                  // likewise
  std::vector<WorkerFailed> failures;  // of that epoch
  std::vector<RankRecovers> recovers;  // likewise
  // Since 1970, when this was sent, to compare machines' clocks by; 0: not said. The links fill it
  // in: a state machine has no such clock.
  Time wall_clock{0};
};
struct Ready {
  Epoch epoch = 0;
  int store_port = 0;  // of group rank 0, and of all with a local store; others: 0
};
struct WorkersSucceeded {
  Epoch epoch = 0;
};
/// The epoch cannot be formed with this node's workers: one has ended well, or is about to.
struct CannotReform {
  Epoch epoch = 0;
  std::string reason;
};
/// A worker says that the state of these ranks is not that of the others.
struct RanksRejected {
  Epoch epoch = 0;
  std::vector<int> ranks;
  std::string reason;
};
/// No worker of this epoch, or of an earlier one, is left on the node.
struct Stopped {
  Epoch epoch = 0;
  std::vector<int> stopped_ranks;  // which the launcher ended on purpose
  bool resume = false;             // one of them ended with 75: saved, to be started again
};
/// The node goes, because of a signal (0: for another reason).
struct Leave {
  int signal = 0;
  std::string reason;
};

// From the coordinator to a node.

struct Refused {
  std::string reason;
};
/// Who is here and who is awaited, in words.
struct Status {
  std::string text;
};
/// Make ready: group rank 0 opens the store, or every node its own end of it.
struct Prepare {
  Membership membership;
  // Workers live on from the epoch before, but for those of places that are replaced or left out;
  // of those what is left is to be killed. False: no worker is left, all are to be started.
  bool carries_over = false;
  std::vector<int> replaced = {};  // places that new processes fill
  std::string reason = {};         // where workers live on
};
struct Start {
  Epoch epoch = 0;
  std::string master_addr;
  int master_port = 0;
};
struct Stop {
  Epoch epoch = 0;
  int signal = 15;  // what the workers get first
  std::string reason;
};
/// All ranks go on after some were replaced.
struct Recovered {
  Epoch epoch = 0;
  std::int64_t step = 0;  // committed
  Time since_loss{0};
};
/// The job is over.
struct Finish {
  int code = 0;
  std::string reason;                  // empty on success
  std::vector<WorkerFailed> failures;  // the first ones, in order
  std::vector<int> more_failed = {};   // ranks that failed after those
  std::vector<int> stopped_ranks;      // ended by the launcher on purpose
};

/// A signal that is meant for the workers of the whole job, as schedulers send one before they end
/// it. From the node that got it to the coordinator, and from there to all.
struct PassSignal {
  int signal = 0;  // SIGUSR1 or SIGUSR2; 0: it was passed on before, the time is news
  std::optional<Time> time_left = {};  // until the scheduler ends the job, where that is known

  bool operator==(const PassSignal&) const = default;
};

// Both ways, so that silence means something.
struct Beat {};

// The survey of the network before an epoch (network_survey.h). A round is one question to all
// nodes and their answers; what belongs to another round is no answer.

/// An address at which other nodes may reach a node.
struct NodeAddress {
  std::string address;  // numeric
  int prefix_length = 0;
  std::string interface;
  int speed = 0;        // of the interface, in Mbit/s; 0: not known
  int port = 0;         // where it answers probes
  bool allowed = true;  // false: the user has named another one; it is probed for advice only

  bool operator==(const NodeAddress&) const = default;
};
/// To a node: where might others reach you? Open a port for probes there.
struct AskAddresses {
  std::uint64_t round = 0;
};
/// The answer, the node's favourite first.
struct Addresses {
  std::uint64_t round = 0;
  std::vector<NodeAddress> addresses;
  std::string named_by;  // the option or variable that says which are allowed; empty: none does
};
struct ProbeTarget {
  int node = 0;     // numbers for the answer
  int address = 0;  // likewise
  std::string id;   // of the node that must answer there
  std::string at;   // a numeric address
  int port = 0;

  bool operator==(const ProbeTarget&) const = default;
};
/// To a node: which of these do you reach?
struct ProbeNodes {
  std::uint64_t round = 0;
  std::vector<ProbeTarget> targets;
};
struct ProbeFailure {
  int node = 0;
  int address = 0;
  std::string reason;

  bool operator==(const ProbeFailure&) const = default;
};
/// The answer: all but these.
struct Probed {
  std::uint64_t round = 0;
  std::vector<ProbeFailure> failures;
};

// For `lockstep stack`. None of this concerns the state machines.

/// From a node to the coordinator: where do all ranks of the job stand?
struct AskStacks {
  std::uint64_t id = 0;
  std::chrono::milliseconds limit{0};  // for the nodes to answer
};
/// From the coordinator to a node: where do yours?
struct FindStacks {
  std::uint64_t id = 0;
  std::chrono::milliseconds limit{0};
};
/// The answer, and the same passed on to who asked.
struct FoundStacks {
  std::uint64_t id = 0;
  std::string stacks;  // NodeStacks as JSON
};
/// To who asked: no more answers come.
struct StacksDone {
  std::uint64_t id = 0;
  std::vector<std::string> missing;  // hosts that did not answer
};

using Message = std::variant<Join, Ready, WorkerFailed, WorkersSucceeded, Stopped, Leave, Refused,
                             Status, Prepare, Start, Stop, Finish, Beat, AskStacks, FindStacks,
                             FoundStacks, StacksDone, RankRecovers, CannotReform, RanksRejected,
                             Recovered, PassSignal, AskAddresses, Addresses, ProbeNodes, Probed>;

/// One message as JSON text, and back. decode() throws InvalidArgument for everything that encode()
/// could not have made; for what a node with another version of lockstep sends when it joins, it
/// names both versions. Refused keeps its form for ever, so that such a node can be told.
std::string encode(const Message& message);
Message decode(std::string_view text);

}  // namespace lockstep
