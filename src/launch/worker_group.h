#pragma once

#include <sys/types.h>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/events.h"
#include "launch/failure_report.h"
#include "launch/job_plan.h"
#include "launch/keeper.h"
#include "launch/log_layout.h"
#include "launch/log_pump.h"
#include "launch/output_plan.h"
#include "launch/spare_pool.h"
#include "launch/worker_environment.h"
#include "launch/worker_hub.h"

namespace lockstep {

/// The workers of this node: starts one per slot with its environment and its streams, and turns
/// their ends into what the agent and the report need.
class WorkerGroup {
 public:
  struct Services {
    Keeper& keeper;
    LogPump& pump;
    LogLayout& layout;
    EventLog& events;
    std::string agent_socket;  // for LOCKSTEP_AGENT; empty: none
    std::string run_directory;
    SparePool& spares;
    /// To a spare; false: it does not take it.
    std::function<bool(int spare, const SlotPlace&, const TakePlace&)> give_place;
  };

  struct Worker {
    Epoch epoch = 0;
    int rank = 0;  // its place in the job
    int local_rank = 0;
    int restart_count = 0;
    int node_rank = 0;
    bool joins = false;  // others that live on
    pid_t pid = 0;       // 0: not yet running
    std::string error_file;
    std::string stderr_log;                      // empty: no file
    std::optional<std::uint64_t> stderr_stream;  // of the pump
    std::optional<std::uint64_t> stdout_stream;
  };

  WorkerGroup(const JobPlan& plan, Services services);

  /// Begins to start all of them, or those that are replaced; there a spare goes before a fresh
  /// process. Throws for what fails before the first: a folder that cannot be made, an environment
  /// that cannot be.
  void start(const StartWorkers& start);

  /// SIGKILL to the process group of one, if it runs.
  void kill(int local_rank);

  /// To the process group of every worker that runs.
  void signal(int number);

  /// A worker's end, where the event is about one.
  std::optional<WorkerEnd> on(const KeeperEvent& event);

  /// Closes what workers that have ended wrote to: nothing that they started writes any more.
  void close_ended_streams();

  bool all_started() const;
  bool holds(int local_rank) const;

  /// Which place the process fills, if it is a worker.
  std::optional<SlotPlace> place_of(pid_t pid) const;

  /// Those that run, by id.
  const std::map<std::uint64_t, Worker>& running() const { return workers_; }

 private:
  struct Prepared {
    Placement placement;
    WorkerLogs logs;
    Worker worker;
  };

  Prepared prepare(const StartWorkers& start, int local_rank) const;
  void start_one(const StartWorkers& start, int local_rank);
  bool take_spare(const StartWorkers& start, int local_rank);
  OutputPlan output_of(OutputStream stream, const Prepared& prepared) const;
  void note_start(const Worker& worker, bool was_spare);
  void end_what_is_left_of(int local_rank) const;
  void close_streams_of(int local_rank);
  UniqueFd connect(OutputStream stream, Prepared& prepared);
  /// `reason`: why it was not even started.
  std::optional<WorkerEnd> ended(std::uint64_t id, const ExitStatus& status,
                                 const std::string& reason);
  WorkerFailure describe_failure(const Worker& worker, const ExitStatus& status,
                                 const std::string& reason);

  const JobPlan& plan_;
  Services services_;
  std::map<std::uint64_t, Worker> workers_;
  std::map<int, pid_t> last_pids_;                           // of those that ended, by local rank
  std::map<int, std::vector<std::uint64_t>> ended_streams_;  // by local rank
  std::uint64_t last_id_ = 0;
  std::uint64_t last_stream_ = 0;
};

}  // namespace lockstep
