#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/checks.h"
#include "sim/trace.h"

namespace lockstep::sim {

struct Outcome {
  std::uint64_t hash = 0;  // of all that happened
  std::uint64_t events = 0;
  std::optional<std::string> violation;
  std::vector<std::string> last_events;  // where lines were asked for
  Tally tally;
};

/// Runs the job that belongs to this seed, to its end or to the first broken rule.
Outcome simulate(std::uint64_t seed, Trace::Lines lines);

}  // namespace lockstep::sim
