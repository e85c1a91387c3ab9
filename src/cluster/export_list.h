#pragma once

#include <string>

#include "lockstep/environment.h"

namespace lockstep {

/// The variables that a launcher on another machine gets from this one.
///
/// Without a word these are the ones that decide what a program finds and how it runs: PATH,
/// PYTHON*, LD_LIBRARY_PATH, VIRTUAL_ENV, CONDA*, NCCL_*, OMP_* and the like. `list` adds to them:
/// "NAME", "NAME=VALUE", "PREFIX*", with commas between. ALL stands for everything but what belongs
/// to this machine or session; NONE takes away everything named so far. Secrets of lockstep never
/// go this way. Throws InvalidArgument, naming --export, for what is none of these.
Environment::Variables exported_variables(const Environment& environment, const std::string& list);

/// Whether `list` says NONE: nothing goes but what it names.
bool exports_nothing_else(const std::string& list);

}  // namespace lockstep
