#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/subprocess.h"

namespace lockstep {

struct CaptureOptions {
  std::vector<std::string> argv;
  std::chrono::milliseconds limit;                          // then it is ended
  std::map<std::string, std::string> set_environment = {};  // on top of this process's
  std::vector<std::string> unset_environment = {};          // taken away before that
  std::chrono::milliseconds grace{0};  // between the request to end, by SIGTERM, and SIGKILL
  std::size_t most_bytes = std::size_t{1} << 20;  // of each stream that are kept, the first ones
};

struct CapturedProgram {
  bool in_time = true;  // false: it was ended
  ExitStatus status;
  std::string out;
  std::string err;
};

/// Runs a program without input and returns all that it has said. What it leaves in the background
/// is not waited for. Throws StartError if it cannot be started.
CapturedProgram run_captured(const CaptureOptions& options);

}  // namespace lockstep
