#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep doctor`: checks this machine, and with --nnodes others and the network between them,
/// and prints what it found. Returns the exit code: 1 if there is an error. Throws InvalidArgument
/// for a wrong command line.
int doctor_command(const std::vector<std::string>& arguments, const Environment& environment,
                   const std::string& version, std::ostream& out);

/// Its options for completions, with blanks between and a '=' behind those that take a value.
std::string doctor_option_words();

}  // namespace lockstep
