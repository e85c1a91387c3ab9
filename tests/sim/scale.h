#pragma once

#include <cstdint>
#include <string>

#include "sim/scenario.h"
#include "sim/world.h"

namespace lockstep::sim {

/// A job on very many nodes, with what happens in a large cluster: nodes that come late, a rack
/// that loses power and comes back, a rolling reboot, an etcd that stalls, and the coordinator's
/// node dying.
Scenario make_large_scenario(std::uint64_t seed, int agents);

/// Whether the job has come through all of it, and at a cost for each node that does not grow with
/// the job, in counts; the bounds are the same for every number of nodes. Throws Violation. Returns
/// the counts in words.
std::string check_scale(const Scenario& scenario, const Outcome& outcome);

}  // namespace lockstep::sim
