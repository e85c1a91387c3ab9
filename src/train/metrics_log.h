#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "core/unique_fd.h"

namespace lockstep {

/// The curves of a run as a file: one JSON line {"step": ..., "time": ..., "<name>": value, ...}
/// for each report, appended in one write. This is RUN/metrics/rank_R.jsonl of the run directory.
class MetricsLog {
 public:
  /// Makes the folders. Throws SystemError.
  explicit MetricsLog(std::string path);

  /// Whole lines in the file.
  std::int64_t lines() const { return lines_; }

  /// Keeps the first `lines`, as far as they are of steps up to `step`: a resumed run writes the
  /// rest again. Throws SystemError.
  void keep(std::int64_t lines, std::int64_t step);

  /// Values that are not finite appear as null, for which JSON has no numbers. A file that cannot
  /// be written to (a full disk) costs lines, not the run.
  void append(std::int64_t step, const nlohmann::json& values);

  const std::string& path() const { return path_; }

 private:
  void open();

  std::string path_;
  UniqueFd file_;
  std::int64_t lines_ = 0;
};

}  // namespace lockstep
