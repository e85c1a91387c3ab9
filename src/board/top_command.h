#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace lockstep {

/// `lockstep top DIR`: runs at a glance in a terminal. Throws InvalidArgument. Returns the exit
/// status.
int top_command(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace lockstep
