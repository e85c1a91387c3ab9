#pragma once

#include <string>
#include <vector>

#include "launch/process_state.h"
#include "launch/stack_parse.h"

namespace lockstep {

/// Stacks in lines to print, threads that stand in the same place together, the main one first.
/// Names are the kernel's, from `process`.
std::string stacks_in_words(const std::vector<ThreadStack>& stacks, const ProcessState& process);

/// What the kernel alone tells of each thread, equal ones together.
std::string states_in_words(const ProcessState& process);

}  // namespace lockstep
