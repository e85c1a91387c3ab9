#pragma once

namespace lockstep {

class World;

/// Where a process is among those of a job, beyond its rank.

/// The number of this process's place: its rank in the first world of the job, which it and those
/// that replace it keep while ranks change. Without a launcher that replaces processes, its rank.
int slot_of(World& world);

/// The lowest rank on this process's node: the one that does what one of each node does.
int first_rank_of_node(World& world);

}  // namespace lockstep
