#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep stack [JOB]`: shows where every rank of a job that runs on this machine stands. JOB is
/// the beginning of its id; without it, the only job there is. Returns the exit code; throws
/// InvalidArgument when no job, or more than one, is meant.
int stack_of_job(const std::vector<std::string>& arguments, const Environment& environment,
                 std::ostream& out);

}  // namespace lockstep
