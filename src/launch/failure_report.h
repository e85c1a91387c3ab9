#pragma once

#include <sys/types.h>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/subprocess.h"
#include "launch/error_file.h"

namespace lockstep {

/// The end of one worker that nobody asked to end.
struct WorkerFailure {
  int rank = -1;  // the slot
  int local_rank = -1;
  std::string host;
  int node_rank = -1;
  pid_t pid = -1;
  ExitStatus status;
  std::string time;  // of its node's wall clock, for people (wall_time())
  std::optional<ErrorFile> error;
  std::vector<std::string> stderr_tail;  // last lines, oldest first, without newlines
  std::string log_path;                  // of its standard error; empty: none was kept
  std::uint64_t epoch = 0;
  int restart_count = 0;

  bool operator==(const WorkerFailure&) const = default;
};

/// Why a job ended badly. The order of its parts is the order in which people need them.
struct FailureReport {
  std::string program;  // what ran: "train.py"
  std::string reason;   // why that ended the job: "no restarts left (--max-restarts 3)"
  std::optional<WorkerFailure> first;  // none: the job failed without it, say by losing a node
  std::vector<WorkerFailure> others;
  std::vector<int> more_failed = {};  // ranks that failed after those
  std::vector<int> stopped_ranks;     // ended by the launcher on purpose

  bool operator==(const FailureReport&) const = default;
};

struct ReportStyle {
  bool colour = false;
  std::size_t columns = 90;  // sentences are wrapped here; workers' own lines never are
};

/// The report as people read it; ends in a newline.
std::string to_text(const FailureReport& report, const ReportStyle& style = {});

/// One line of JSON, without a newline. Long texts are cut, and of a report's `others` only what
/// to_text() shows is kept, so that it fits a message between nodes.
std::string to_json(const WorkerFailure& failure);
std::string to_json(const FailureReport& report);

/// Reads what to_json() wrote. Throws Error, saying what is wrong, for anything that it cannot have
/// written.
WorkerFailure worker_failure_from_json(std::string_view json);
FailureReport failure_report_from_json(std::string_view json);

/// The exit code that `lockstep run` passes on: the worker's own, 128 + signal for a signal.
int exit_code_for(const ExitStatus& status);

/// What goes into the launcher's own $TORCHELASTIC_ERROR_FILE: the worker's error file with the
/// error code in it; where it left none, the same made from its exit status and last lines.
std::string error_file_for_parent(const WorkerFailure& failure);

/// A sentence on what such an end often means and where to look; empty if nothing is known.
std::string hint_for(const ExitStatus& status);

}  // namespace lockstep
