#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "core/command_manual.h"

namespace lockstep {

/// `lockstep top DIR`: runs at a glance in a terminal. Throws InvalidArgument. Returns the exit
/// status.
int top_command(const std::vector<std::string>& arguments, std::ostream& out);

const CommandManual& top_manual();

}  // namespace lockstep
