#pragma once

#include "launch/coordinator.h"
#include "launch/events.h"

namespace lockstep {

/// The line of events.jsonl about a node that joined (`node_joined`) or was lost (`node_lost`).
Event event_of(const NodeChange& change, std::uint64_t epoch);

}  // namespace lockstep
