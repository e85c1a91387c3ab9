#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/checks.h"
#include "sim/network.h"
#include "sim/trace.h"

namespace lockstep::sim {

struct Outcome {
  std::uint64_t hash = 0;  // of all that happened
  std::uint64_t events = 0;
  std::optional<std::string> violation;
  std::vector<std::string> last_events;  // where lines were asked for
  Tally tally;
  Time virtual_time{0};          // when it ended
  std::vector<Traffic> traffic;  // by node
  int held_epochs = 0;           // that waited because etcd stalled
  std::uint64_t visits = 0;      // see Coordinator::visits(); of coordinators that have ended
};

/// Runs the job that belongs to this seed, to its end or to the first broken rule.
Outcome simulate(std::uint64_t seed, Trace::Lines lines);
Outcome simulate(const Scenario& scenario, Trace::Lines lines);

}  // namespace lockstep::sim
