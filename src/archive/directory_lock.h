#pragma once

#include <chrono>
#include <string>

#include "core/unique_fd.h"

namespace lockstep {

/// The right to write into a directory of snapshots: one process at a time has it, and the kernel
/// takes it back when that process ends, however it ends.
struct DirectoryLock {
  enum class Outcome {
    held,
    taken,        // another process has it
    unsupported,  // the file system knows no locks: names keep two jobs apart
    failed,       // the directory cannot be written to
  };

  Outcome outcome = Outcome::failed;
  UniqueFd fd;         // keeps the lock
  std::string holder;  // of one that is taken: "host pid"
  std::string reason;  // of `failed`
};

/// Makes the directory where it is missing. A lock that is taken is tried again for `patience`: the
/// process that held it may be on its way out.
DirectoryLock lock_directory(const std::string& directory, std::chrono::milliseconds patience);

/// "host pid" of this process, as it is written into the lock.
std::string lock_holder_name();

std::string host_name();

}  // namespace lockstep
