#pragma once

#include <string>

#include "lockstep/environment.h"

namespace lockstep {

/// The path of the program that this process runs. Throws SystemError.
std::string own_program();

/// The working directory as the shell calls it, where that is right: other machines may have that
/// place, and not the one behind it on this machine.
std::string working_directory(const Environment& environment);

/// Makes these the variables of this process, so that programs which it starts find them. No other
/// thread may run.
void replace_environment(const Environment::Variables& variables);

}  // namespace lockstep
