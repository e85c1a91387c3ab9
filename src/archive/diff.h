#pragma once

#include <iosfwd>
#include <string>

#include "archive/checkpoint.h"

namespace lockstep {

/// Prints what differs between two checkpoints, a line for each tensor and value, and a summary.
/// Equal means: the same bits. Where only one of them is a snapshot, or `part` names one, a single
/// part of each is compared, without prefixes of wrappers. Returns whether anything differs.
bool print_differences(const Checkpoint& a, const Checkpoint& b, const std::string& part,
                       std::ostream& out);

}  // namespace lockstep
