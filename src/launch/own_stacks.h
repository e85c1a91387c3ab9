#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/process_state.h"
#include "launch/stack_parse.h"

namespace lockstep {

struct OwnStacks {
  std::vector<ThreadStack> stacks;
  std::string problem;  // why threads are missing; empty: none is
  bool not_permitted = false;
};

/// Where the threads of a process stand, found without another program: each is held for the
/// milliseconds that it takes to read its stack. Functions are named where their files have names.
///
/// The process is left as it was: running, or stopped by a signal. Gives what it has at the limit.
OwnStacks read_stacks(const ProcessState& process, std::chrono::milliseconds time_limit);

}  // namespace lockstep
