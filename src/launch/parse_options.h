#pragma once

#include <string>
#include <vector>

#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What the arguments of `lockstep run` (without those two words) and the environment ask for. The
/// command line comes before variables, variables before defaults. With --help, only `help` is set.
///
/// Reads no file and asks no system. Throws InvalidArgument, one line that names the option or
/// variable, its value, the rule and the cure.
RunOptions parse_run_options(const std::vector<std::string>& arguments,
                             const Environment& environment);

/// The same for `lockstep launch`, which has --use-env too.
RunOptions parse_launch_options(const std::vector<std::string>& arguments,
                                const Environment& environment);

}  // namespace lockstep
