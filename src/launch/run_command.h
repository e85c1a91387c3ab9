#pragma once

#include <string>
#include <vector>

#include "launch/option_table.h"
#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep run` and `lockstep launch`: parses, plans, runs the job on this node to its end,
/// reports, and returns the exit code. Throws InvalidArgument for what the user got wrong, before
/// anything has started. Call it before any thread is started.
int run_command(LaunchCommand command, const std::vector<std::string>& arguments,
                const Environment& environment);

}  // namespace lockstep
