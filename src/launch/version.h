#pragma once

#include <string>

namespace lockstep {

/// Of this program, such as "0.1.0". All nodes of a job must have the same.
std::string lockstep_version();

/// What is said when a node has another one.
std::string unequal_versions(const std::string& host, const std::string& theirs);

}  // namespace lockstep
