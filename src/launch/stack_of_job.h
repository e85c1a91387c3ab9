#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep stack [--limit SECONDS] [JOB]`: shows where every rank of a job stands of which a
/// launcher runs on this machine, on all of its nodes; see StackDesk. JOB is the beginning of its
/// id; without it, the only job there is. Returns the exit code, 0 if every rank was shown; throws
/// InvalidArgument when no job, or more than one, is meant.
int stack_of_job(const std::vector<std::string>& arguments, const Environment& environment,
                 std::ostream& out);

}  // namespace lockstep
