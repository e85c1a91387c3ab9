#pragma once

#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep agent`: this machine's part of a job whose head has started it with a brief. Returns
/// the exit code; call it before any thread is started. `version` is that of this program.
int agent_command(const std::vector<std::string>& arguments, const Environment& environment,
                  const std::string& version);

}  // namespace lockstep
