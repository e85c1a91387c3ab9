#pragma once

#include <string>

#include "jobs/job_options.h"

namespace lockstep {

/// A job script for bash: what the scheduler is to know, modules and variables, `lockstep run` with
/// a warning before the end passed on to it, and another start of the job where it ends with 75.
/// Every value stands in it as it was given, whatever it holds. Throws InvalidArgument for what the
/// scheduler has no way to be told.
std::string slurm_script(const JobOptions& options);
std::string pbs_script(const JobOptions& options);

/// A JobSet and the commands that it needs first, in comments. YAML. Throws InvalidArgument.
std::string kubernetes_manifest(const JobOptions& options);

}  // namespace lockstep
