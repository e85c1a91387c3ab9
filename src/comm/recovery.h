#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "control/progress_meter.h"
#include "lockstep/world.h"

namespace lockstep {

/// How a world goes on when the launcher has replaced some of its processes. The thread that uses
/// the world calls these, in this order: commit_to_recovery() when it has its state, then, each
/// time a collective fails, await_revocation() and reform(), and again commit_to_recovery() when
/// the states of all ranks agree.

/// Whether the launcher replaces processes in place and this world can follow.
bool can_recover(World& world);

/// Tells the launcher that this process has the state after so many steps and can be carried into
/// another membership; from now on the launcher's word that processes are lost aborts the world's
/// groups. Ends World::joins().
void commit_to_recovery(World& world, std::int64_t steps);

/// From now on this process cannot be carried over any more, and deaths of others reach the program
/// as they do without recovery.
void end_recovery(World& world, std::int64_t steps);

/// Where the launcher is told how the program gets on; null where nobody listens.
ProgressMeter* meter_of(World& world);

/// Asks the launcher to replace these ranks, whose state is not that of the others; its word that
/// this membership ends comes next. One rank says it.
void reject(World& world, const std::vector<int>& ranks, const std::string& reason);

/// False once an operation on one of the world's groups has failed, those of new_group() included.
bool all_groups_work(World& world);

/// Whether the launcher has said that this membership ends. Waits for that word until the limit.
bool await_revocation(World& world, std::chrono::milliseconds limit);

/// Leaves the groups and meets the other ranks, old and new, in the membership that the launcher
/// announces: the world's group is a new one, and the store an empty one. That membership may have
/// fewer or more ranks than the one before, and this process another rank in it. Where that
/// membership is revoked again meanwhile, goes on to the next. Handles of groups from before refuse
/// operations, those of new_group() included.
///
/// Throws Timeout or PeerLost when there is no such membership in time, or the launcher is gone or
/// wants the program to stop.
void reform(World& world);

}  // namespace lockstep
