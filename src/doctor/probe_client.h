#pragma once

#include <chrono>
#include <string>

#include "doctor/messages.h"
#include "doctor/probe_session.h"

namespace lockstep {

struct ProbeLimits {
  std::chrono::milliseconds connect{2000};
  std::chrono::milliseconds stall{4000};   // for the first, small burst
  std::chrono::milliseconds measure{150};  // a burst that takes so long says enough
  int round_trips = 15;
};

/// Finds out how the other node is reached at each of the targets: whether, at what latency, and
/// where asked for, how fast. First all are reached, at the same time, then those to be measured
/// take their turns. Blocks for some seconds at most.
ProbeAnswer probe(const ProbeQuestion& question, const ProbeTrust& trust,
                  const ProbeLimits& limits = {});

}  // namespace lockstep
