#pragma once

#include <sys/types.h>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace lockstep {

/// One rank of a running job.
struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
  std::string host;  // empty: this machine
};

struct StackOptions {
  std::chrono::milliseconds time_limit = std::chrono::seconds(30);  // per process and tool
  int parallel = 0;                 // processes looked into at once; 0: one per processor
  std::optional<std::string> path;  // where tools are looked for; unset: PATH
  std::string this_host;            // empty: what gethostname() says
};

/// Prints where every rank stands, ranks that stand in the same place together. Never touches a
/// process that waits in the kernel or that a debugger holds: those, and all where no tool is
/// installed, are described by what the kernel tells without asking them.
///
/// Returns 0 when every rank was described, 1 when one was not: it has ended, runs on another
/// machine, or there is none. Blocks the caller for at most a few time limits.
int stack_command(const std::vector<RankProcess>& ranks, const StackOptions& options,
                  std::ostream& out);

/// Ranks as people write them: "0-2,5".
std::string format_ranks(std::vector<int> ranks);

}  // namespace lockstep
