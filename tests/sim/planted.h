#pragma once

namespace lockstep::sim {

/// Chooses which bug of mutations.cmake the launcher's code has. Only the program with mutated
/// sources asks.
void plant(const char* name);
bool planted(const char* name);

}  // namespace lockstep::sim
