#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

struct LogLayoutOptions {
  std::optional<std::string> log_dir;  // --log-dir; "/dev/null": no files at all
  std::string run_directory;           // where logs go without --log-dir
  std::string run_id;
};

/// Which start of the workers this is.
struct AttemptNumber {
  std::uint64_t epoch = 0;
  int restart_count = 0;  // torchrun's, which a change of membership does not raise
};

struct WorkerPlace {
  int rank = 0;
  int local_rank = 0;
};

/// Where one worker's output goes. All empty when files are disabled.
struct WorkerLogs {
  std::string stdout_log;
  std::string stderr_log;
  std::string error_file;       // for TORCHELASTIC_ERROR_FILE
  std::string filtered_stdout;  // one file for all ranks of this node
  std::string filtered_stderr;
};

/// The paths of log files.
///
/// With --log-dir L they are torchrun's: L/<run id>_<8 random>/attempt_<restart count>/<local
/// rank>/{stdout.log, stderr.log, error.json}, and filtered_stdout.log and filtered_stderr.log
/// beside the ranks. Without it they are <run directory>/logs/attempt_<epoch>/<rank>/..., with the
/// rank in the whole job.
///
/// Nothing is ever deleted or emptied. If attempt_K exists already (a change of membership keeps
/// the restart count; a run directory is used again), the next one is attempt_K.2, then
/// attempt_K.3. A worker that replaces another in the same attempt writes on at the end of its
/// slot's files.
class LogLayout {
 public:
  /// Makes the run's folder in --log-dir. Throws InvalidArgument if --log-dir names something that
  /// is no folder, SystemError if the folder cannot be made.
  explicit LogLayout(const LogLayoutOptions& options);

  bool enabled() const { return !directory_.empty(); }

  /// Holds the attempt_* folders; empty when files are disabled.
  const std::string& directory() const { return directory_; }

  /// Makes the attempt's folder. Call before all workers are started anew.
  void begin_attempt(const AttemptNumber& number);

  /// Makes the worker's folder. The error file that a predecessor in this slot left is moved aside,
  /// to error.1.json and so on, so that it is not taken for the new worker's.
  WorkerLogs prepare_worker(const WorkerPlace& place) const;

 private:
  bool torchrun_names_ = false;
  std::string directory_;
  std::string attempt_;
};

}  // namespace lockstep
