#pragma once

#include <string>
#include <vector>

#include "launch/option_table.h"
#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep run` and `lockstep launch`, wherever the nodes come from: finds them out, and is the
/// job's head, one of its nodes, or all of it. Returns the exit code; throws InvalidArgument for
/// what the user got wrong, before anything has started. Call it before any thread is started.
/// `version` is that of this program.
int cluster_run(LaunchCommand command, const std::vector<std::string>& arguments,
                const Environment& environment, const std::string& version);

}  // namespace lockstep
