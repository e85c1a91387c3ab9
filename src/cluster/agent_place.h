#pragma once

#include <vector>

#include "cluster/brief.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What a process that was started with a brief works with: what this machine has, and what the
/// brief says on top. Options and secrets of this machine do not count, GPUs are those of the
/// brief.
Environment::Variables variables_for(const Brief& brief, const Environment& own);

/// Where it may find its head: as the brief says, and before that where ssh came from, which is an
/// address of the head that reaches this machine.
std::vector<Endpoint> endpoints_for(const Brief& brief, const Environment& own);

}  // namespace lockstep
