#pragma once

#include <sys/types.h>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/unique_fd.h"
#include "lockstep/environment.h"

namespace lockstep {

struct RunDirectoryOptions {
  std::optional<std::string> path;  // --run-dir
  std::string run_id;
  std::string host;
};

/// A worker as job.json names it. Pid and start time together belong to one process only.
struct WorkerRecord {
  int rank = -1;
  int local_rank = -1;
  pid_t pid = -1;
  std::uint64_t start_time = 0;  // process_start_time()

  bool operator==(const WorkerRecord&) const = default;
};

/// What job.json holds: enough to find a running job's processes from outside.
struct JobRecord {
  std::string run_id;
  std::string host;
  pid_t pid = -1;  // of the agent
  std::uint64_t start_time = 0;
  std::string started;  // wall_time()
  std::vector<std::string> command;
  std::uint64_t epoch = 0;
  int node_rank = -1;  // -1: not known yet
  int world_size = 0;  // with those that are left out
  std::vector<int> left_out = {};
  std::string log_directory;
  std::vector<WorkerRecord> workers;

  bool operator==(const JobRecord&) const = default;
};

std::string to_json(const JobRecord& record);
std::optional<JobRecord> job_record_from_json(std::string_view json);

/// The job.json of a run directory; std::nullopt where there is none that can be read.
std::optional<JobRecord> read_job(const std::string& run_directory);

/// When the process started, in the kernel's ticks since boot; std::nullopt if there is none.
std::optional<std::uint64_t> process_start_time(pid_t pid);

/// The folder of one agent's run: job.json, events.jsonl, logs and what programs put there.
///
/// --run-dir names it; otherwise it is made as <temporary place>/lockstep-<uid>/<run id>_<8
/// random>, readable by this user alone, where the temporary place is $TMPDIR or /tmp.
/// ($XDG_RUNTIME_DIR is not used: it lies in memory and is emptied when the user logs out, and logs
/// must outlive that.) A folder with that name that belongs to someone else, or that others may
/// write to, is refused.
///
/// A lock in it, held as long as this object lives, tells a running job from one that has ended.
/// Agents that are given the same --run-dir, as on nodes with a shared disk, do not meet: the first
/// takes the folder itself, others take <folder>/node_<host>, then <folder>/node_<host>.2.
class RunDirectory {
 public:
  /// Throws InvalidArgument, naming --run-dir, or SystemError.
  RunDirectory(const RunDirectoryOptions& options, const Environment& environment);
  ~RunDirectory();

  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// Absolute.
  const std::string& path() const { return path_; }
  std::string events_path() const { return path_ + "/events.jsonl"; }

  /// For LOCKSTEP_AGENT. In the folder, if such a path fits the 107 bytes that a Unix socket's may
  /// have, else in a short folder of its own. Removed with this object.
  const std::string& socket_path() const { return socket_path_; }

  /// Replaces job.json. Throws SystemError.
  void write_job(const JobRecord& record) const;

  /// Call at the end. After a success a folder in the temporary place is removed, unless it holds
  /// something that someone may want: a log, a metric, an error file, a snapshot. True if removed.
  bool finish(bool succeeded);

 private:
  void choose_socket_path(const Environment& environment);

  bool temporary_ = false;
  std::string path_;
  std::string link_;  // how a job in --run-dir is found: a link in the temporary place
  std::string socket_path_;
  std::string socket_folder_;  // if not path_
  UniqueFd lock_;
};

/// A job of this user on this machine whose agent runs.
struct LiveJob {
  std::string path;  // of its run directory
  JobRecord record;
};

/// Jobs whose agents run, by start; for `lockstep stack`. Folders of jobs that have ended are
/// removed from the temporary place if they hold nothing that someone may want.
std::vector<LiveJob> find_live_jobs(const Environment& environment);

}  // namespace lockstep
