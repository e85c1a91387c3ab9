#pragma once

#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace lockstep {

/// The machines that a scheduler has given to a job, as far as it says.
struct ExpectedHosts {
  std::vector<std::string> names;  // empty: not known, or not as many as the job has nodes
  std::string cure;                // how a command is started on all of them
};

/// Slurm's by SLURM_JOB_NODELIST, those of PBS by the file that PBS_NODEFILE names. Only a
/// convenience: what cannot be read is as if it were not there.
ExpectedHosts expected_hosts(const Environment& environment, int nodes);

}  // namespace lockstep
