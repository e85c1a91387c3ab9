#pragma once

#include <optional>
#include <string>

#include "core/unique_fd.h"
#include "launch/coordinator_record.h"

namespace lockstep {

/// The coordinator's records in a file, one line of JSON each, on the disk before append() returns.
/// A launcher that is killed and started again finds there where the job stood.
class CoordinatorLog {
 public:
  /// Reads what is there and goes on writing behind it. What belongs to another job, or to one that
  /// has ended, is removed. Throws SystemError.
  CoordinatorLog(const std::string& path, const std::string& run_id);

  /// The last record of this job, if it had not ended.
  const std::optional<CoordinatorRecord>& last() const { return last_; }

  /// Throws SystemError.
  void append(const CoordinatorRecord& record);

 private:
  std::string path_;
  UniqueFd file_;
  std::optional<CoordinatorRecord> last_;
};

}  // namespace lockstep
