#pragma once

#include <sys/types.h>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/stack_report.h"

namespace lockstep {

/// One rank of a running job on this machine.
struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
};

struct StackOptions {
  std::chrono::milliseconds time_limit = std::chrono::seconds(30);  // per process and tool
  int parallel = 0;                 // processes looked into at once; 0: one per processor
  std::optional<std::string> path;  // where tools are looked for; unset: PATH
  bool by_ourselves = true;  // where no tool answers, this process looks into the others itself
};

/// Looks where each of these processes stands; the host is left empty. Never touches a process that
/// waits in the kernel or that a debugger holds: those, and all that nobody may look into, are
/// described by what the kernel tells without asking them.
///
/// Blocks the caller for at most a few time limits.
NodeStacks find_stacks(const std::vector<RankProcess>& ranks, const StackOptions& options);

}  // namespace lockstep
