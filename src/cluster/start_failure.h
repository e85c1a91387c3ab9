#pragma once

#include <string>
#include <vector>

#include "cluster/start_command.h"
#include "core/subprocess.h"

namespace lockstep {

/// What went wrong when a launcher could not be started on a machine, in one line that names the
/// machine and the cure, as far as the starter's exit code and last lines of standard error tell.
std::string explain_start_failure(StarterKind kind, const std::string& host,
                                  const std::string& lockstep, const ExitStatus& status,
                                  const std::vector<std::string>& stderr_lines);

}  // namespace lockstep
