#pragma once

#include <string>

#include "lockstep/environment.h"

namespace lockstep {

/// Runs the lines of --prologue with bash, in this environment, and returns the one that they
/// leave. `module` is made known where the machine has it. What they print goes to standard error.
///
/// Throws SystemError, naming the command, when one of them fails.
Environment after_prologue(const std::string& lines, const Environment& environment);

}  // namespace lockstep
