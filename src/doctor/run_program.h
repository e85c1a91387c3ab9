#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "core/captured_program.h"

namespace lockstep {

struct ProgramOutput : CapturedProgram {
  /// What a program says last is most often why it ended.
  std::string last_error_line() const;
};

/// Runs a program without input, and kills it when the time is over. A program that cannot be
/// started is one that ended with 127 and said why. At most 1 MiB of each stream is kept.
ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::milliseconds limit,
                          const std::map<std::string, std::string>& environment = {});

}  // namespace lockstep
