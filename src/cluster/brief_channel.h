#pragma once

#include <optional>
#include <string>

#include "core/unique_fd.h"
#include "lockstep/environment.h"

namespace lockstep {

/// By which a brief is in the environment, where srun starts the agent.
inline constexpr const char* kBriefVariable = "LOCKSTEP_BRIEF";
/// The option of an agent that names the file with its brief, where pbsdsh starts it.
inline constexpr const char* kBriefFileOption = "--brief-file";

struct ReceivedBrief {
  std::string text;
  UniqueFd lifeline;  // ends with whoever started this process; none where there is no such thing
};

/// What an agent was told by whoever started it: in `file`, which is removed, else in the variable,
/// else in the first line of standard input, which becomes /dev/null for workers. Waits for it, no
/// longer than half a minute. Throws SystemError.
ReceivedBrief receive_brief(const std::optional<std::string>& file, const Environment& environment);

}  // namespace lockstep
