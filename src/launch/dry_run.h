#pragma once

#include <string>

#include "launch/job_plan.h"

namespace lockstep {

/// What `--dry-run` prints: hosts, ranks, ports, the environment that workers get on top of the
/// launcher's, and their commands. Nothing is started, opened or created.
std::string describe_plan(const JobPlan& plan);

}  // namespace lockstep
