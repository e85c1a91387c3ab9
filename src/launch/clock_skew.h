#pragma once

#include <optional>
#include <string>

#include "launch/messages.h"

namespace lockstep {

/// What is to be said about a node whose wall clock showed `theirs` in a message that arrived when
/// ours showed `ours`; std::nullopt if they agree to within five seconds, which leaves time for the
/// message's way.
///
/// Nothing in a job goes by wall clocks, so this is no reason to refuse a node. What is around it
/// does: make, certificates, Kerberos, and whoever compares lines of logs.
std::optional<std::string> clock_warning(const std::string& host, Time theirs, Time ours);

/// This machine's wall clock, since 1970.
Time wall_clock_now();

}  // namespace lockstep
