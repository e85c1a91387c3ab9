#pragma once

#include "lockstep/environment.h"

namespace lockstep {

/// Whether the process was started as a spare: it has no rank until its agent gives it one.
bool is_spare(const Environment& environment);

/// Returns at once unless this process is a spare. A spare waits here, with everything loaded,
/// until its agent gives it the place of a worker that died; then the environment of this process
/// is that of a worker that was started there, LOCKSTEP_JOINS included, and it connects as one.
///
/// Call it while no other thread of the program reads or changes the environment. Throws Aborted
/// when no place will come: the job has ended, or the agent is gone.
void wait_as_spare();

}  // namespace lockstep
