#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "jobs/job_options.h"

namespace lockstep {

/// `lockstep sbatch`, `lockstep qsub` and `lockstep manifest`: writes the job's script and submits
/// it, or prints the manifest. Returns the exit code, which is that of the scheduler's command.
/// Throws InvalidArgument and SystemError, of one line.
int job_command(JobKind kind, const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace lockstep
