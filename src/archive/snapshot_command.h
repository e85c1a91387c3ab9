#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "core/command_manual.h"

namespace lockstep {

/// `lockstep snapshot list|inspect|verify|convert|diff ...`. Returns the exit code. Throws
/// InvalidArgument and SystemError, of one line.
int snapshot_command(const std::vector<std::string>& arguments, std::ostream& out);

const CommandManual& snapshot_manual();

}  // namespace lockstep
