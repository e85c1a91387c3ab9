#pragma once

namespace lockstep {

/// Lets ATen's operators run on the calling thread alone from now on; other threads keep theirs.
/// Otherwise every loader thread would bring a team of OpenMP threads as large as the machine.
void run_operators_single_threaded();

}  // namespace lockstep
