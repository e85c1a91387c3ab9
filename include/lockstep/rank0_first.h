#pragma once

#include <functional>

#include "lockstep/world.h"

namespace lockstep {

/// Runs `fn` on rank 0 while the others wait, then on all others: the first one downloads or
/// prepares, the rest find it done. If it throws on rank 0, the others throw RemoteError with the
/// message and do not run it.
void rank0_first(World& world, const std::function<void()>& fn);

/// The same for each node by itself, for disks that nodes do not share: local rank 0 goes first.
void local_rank0_first(World& world, const std::function<void()>& fn);

}  // namespace lockstep
