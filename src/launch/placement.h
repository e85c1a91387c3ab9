#pragma once

#include "launch/agent.h"
#include "launch/job_plan.h"
#include "launch/worker_environment.h"

namespace lockstep {

/// One worker's place, from the node's. What is only known once the run directory exists (error
/// file, agent's socket) is left empty.
Placement place_worker(const JobPlan& plan, const StartWorkers& start, int local_rank);

/// All that the worker finds in its environment.
Environment::Variables variables_of_worker(const JobPlan& plan, const Placement& placement);

}  // namespace lockstep
