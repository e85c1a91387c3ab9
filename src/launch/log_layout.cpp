#include "launch/log_layout.h"

#include <sys/stat.h>
#include <cerrno>
#include <filesystem>

#include "launch/unique_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kDisabled = "/dev/null";

void set_aside(const std::string& folder, const std::string& error_file) {
  if (!std::filesystem::exists(error_file)) return;
  std::string aside;
  int number = 0;
  do {
    aside = concat(folder, "/error.", ++number, ".json");
  } while (std::filesystem::exists(aside));
  std::filesystem::rename(error_file, aside);
}

}  // namespace

LogLayout::LogLayout(const LogLayoutOptions& options) {
  if (!options.log_dir || options.log_dir->empty()) {
    directory_ = options.run_directory + "/logs";
    return;
  }
  if (*options.log_dir == kDisabled) return;
  torchrun_names_ = true;
  try {
    make_directories(*options.log_dir);
    // Absolute, because workers may change their working directory before they write an error file.
    const auto base = std::filesystem::absolute(*options.log_dir).lexically_normal();
    directory_ = make_unique_directory(base.string(), as_file_name(options.run_id));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--log-dir: ", error.what()));
  } catch (const SystemError& error) {
    throw SystemError(concat("--log-dir: ", error.what()));
  }
}

void LogLayout::begin_attempt(const AttemptNumber& number) {
  if (!enabled()) return;
  make_directories(directory_);
  const std::string first = torchrun_names_ ? concat(directory_, "/attempt_", number.restart_count)
                                            : concat(directory_, "/attempt_", number.epoch);
  attempt_ = first;
  for (int again = 2; ::mkdir(attempt_.c_str(), 0777) != 0; ++again) {
    if (errno != EEXIST) throw_errno(concat("cannot make the folder '", attempt_, "'"));
    attempt_ = concat(first, ".", again);
  }
}

WorkerLogs LogLayout::prepare_worker(const WorkerPlace& place) const {
  if (!enabled()) return {};
  LOCKSTEP_CHECK(!attempt_.empty(), "prepare_worker() before begin_attempt()");
  const std::string folder = concat(attempt_, "/", torchrun_names_ ? place.local_rank : place.rank);
  make_directories(folder);
  const std::string error_file = folder + "/error.json";
  set_aside(folder, error_file);
  return {.stdout_log = folder + "/stdout.log",
          .stderr_log = folder + "/stderr.log",
          .error_file = error_file,
          .filtered_stdout = attempt_ + "/filtered_stdout.log",
          .filtered_stderr = attempt_ + "/filtered_stderr.log"};
}

}  // namespace lockstep
