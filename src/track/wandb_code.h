#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Sources and settings below a folder, as paths from it, in the order of names: what W&B shows as
/// a run's code. Hidden folders and those that programs make are left out, links are not followed,
/// and what is large is no code; at most 1000 files.
std::vector<std::string> code_files(const std::string& folder);

}  // namespace lockstep
