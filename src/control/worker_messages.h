#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep {

/// What a worker and the agent of its node say to each other, over the Unix socket that
/// LOCKSTEP_AGENT names: each message is JSON in a frame (frame.h). Fields that a reader does not
/// know are skipped, so that a version can add some; a field that is missing is an error, but for
/// those that a later version added.
///
/// Version 2 added recovery in place: WorkerRecovers, WorkerRejected and RevokeWorld, which are not
/// sent to who speaks version 1. TakePlace goes to who has said that it is a spare.

inline constexpr int kOldestWorkerProtocol = 1;
inline constexpr int kNewestWorkerProtocol = 2;
inline constexpr int kFirstRecoveringProtocol = 2;

/// The longest message from a worker, as JSON.
inline constexpr std::size_t kMaxWorkerMessageBytes = 64 << 10;

// From a worker to its agent.

/// The first message. The agent answers with WorkerWelcome or WorkerRefused.
struct WorkerHello {
  int oldest_protocol = kOldestWorkerProtocol;
  int newest_protocol = kNewestWorkerProtocol;
  std::int64_t pid = 0;
  int rank = 0;
  int slot = 0;
  std::uint64_t epoch = 0;
  std::string program;  // for people
  bool spare = false;   // it has no place yet (rank, slot and epoch mean nothing) and waits for one

  bool operator==(const WorkerHello&) const = default;
};

/// The phase of a step that computes, of programs whose steps are all alike. Other phases may take
/// long now and then: an evaluation, data that has to be fetched, a program's own functions.
inline constexpr std::string_view kComputePhase = "train";

/// Steps, and how their time was spent.
struct StepWork {
  std::int64_t steps = 0;
  std::chrono::microseconds data{0};     // waiting for this rank's own data
  std::chrono::microseconds compute{0};  // forward, backward, update
  std::chrono::microseconds waiting{0};  // for other ranks

  bool operator==(const StepWork&) const = default;
};

/// Comes at every heartbeat interval, whatever the program does, and after each ping. None means
/// that the process is stopped or its machine is overloaded; the same step for long, and an age
/// that grows, that the program hangs, or waits for one that does: `alone` tells which.
struct WorkerHeartbeat {
  std::int64_t step = 0;
  std::string phase = {};            // in the program's words: "forward", "save"
  std::chrono::milliseconds age{0};  // since the program reported; 0 where it never has

  // Not every program says these; all are 0 or empty then.
  std::string waits_for = {};                  // a collective under way, a disk; empty: nothing
  std::chrono::milliseconds alone{0};          // without a report or a wait, up to now
  std::chrono::milliseconds longest_alone{0};  // ... in this phase, in the past
  std::int64_t visits = 0;                     // how often this phase came to its end
  StepWork work = {};                          // of all steps so far

  bool operator==(const WorkerHeartbeat&) const = default;
};

/// A collective broke because other ranks are gone.
struct WorkerLostPeers {
  std::vector<int> ranks;  // empty where it cannot be told
  std::string operation;   // in torch.distributed's names

  bool operator==(const WorkerLostPeers&) const = default;
};

/// The program is about to end by itself, all being well.
struct WorkerLeaving {
  bool operator==(const WorkerLeaving&) const = default;
};

/// This worker has the state of the job and can be carried into another membership: if others die,
/// it hears RevokeWorld and NewWorld instead of being stopped. Said when the program has taken
/// charge of its state, and again in every new membership once its state is that of the others;
/// taken back when the program goes on to something that cannot be repeated.
struct WorkerRecovers {
  std::uint64_t epoch = 0;  // the membership that it is in
  std::int64_t step = 0;    // steps committed; the same from all of that membership
  bool able = true;         // false: from now on it cannot be carried over any more

  bool operator==(const WorkerRecovers&) const = default;
};

/// These ranks' state is not that of the others: the worker asks that they be replaced.
struct WorkerRejected {
  std::vector<int> ranks;
  std::string reason;       // for people
  std::uint64_t epoch = 0;  // of the membership whose ranks they are; 0: it was not said

  bool operator==(const WorkerRejected&) const = default;
};

// From an agent to a worker.

struct WorkerWelcome {
  int protocol = kNewestWorkerProtocol;  // what both speak from now on
  std::uint64_t epoch = 0;
  std::chrono::milliseconds heartbeat_interval{1000};
  bool replaces = false;  // the launcher replaces workers in place (version 2)

  bool operator==(const WorkerWelcome&) const = default;
};

/// The connection is closed after it. The program goes on as under a launcher that cannot talk.
struct WorkerRefused {
  std::string reason;

  bool operator==(const WorkerRefused&) const = default;
};

/// Save and end. What is left of the time is counted from the arrival: clocks are not compared.
struct StopWorker {
  std::string reason;
  std::chrono::milliseconds remaining{0};

  bool operator==(const StopWorker&) const = default;
};

/// Ranks are gone: what waits for them is to be given up now. NewWorld follows with this epoch or a
/// later one; or StopWorker, where the job cannot go on in place.
struct RevokeWorld {
  std::uint64_t epoch = 0;      // of the membership that is being formed
  std::string reason;           // for people
  std::vector<int> lost_ranks;  // of the membership that the worker is in; empty: more join

  bool operator==(const RevokeWorld&) const = default;
};

/// The membership changed, and this worker lives on in it. Its slot stays the same; its rank and
/// the size of the world may be others, because places may be left out or filled again.
struct NewWorld {
  std::uint64_t epoch = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int restart_count = 0;
  std::string master_addr;
  int master_port = 0;
  std::vector<int> replaced_slots;  // filled by new processes, without state

  bool operator==(const NewWorld&) const = default;
};

/// To a spare: it takes the place of a worker that died, among others that have lived on. It comes
/// once; from then on it is that worker.
struct TakePlace {
  /// What the environment of a process that is started in this place has, beyond the spare's own.
  std::map<std::string, std::string, std::less<>> variables;

  bool operator==(const TakePlace&) const = default;
};

/// Asks for a heartbeat now.
struct PingWorker {
  bool operator==(const PingWorker&) const = default;
};

using MessageFromWorker = std::variant<WorkerHello, WorkerHeartbeat, WorkerLostPeers, WorkerLeaving,
                                       WorkerRecovers, WorkerRejected>;
using MessageToWorker = std::variant<WorkerWelcome, WorkerRefused, StopWorker, RevokeWorld,
                                     NewWorld, TakePlace, PingWorker>;

/// JSON text; bytes that are not UTF-8 are replaced.
std::string encode_from_worker(const MessageFromWorker& message);
std::string encode_to_worker(const MessageToWorker& message);

/// Throw InvalidArgument, saying what is wrong, for everything that is no such message.
MessageFromWorker decode_from_worker(std::string_view text);
MessageToWorker decode_to_worker(std::string_view text);

}  // namespace lockstep
