#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// "SIGTERM"; "SIGRTMIN+3" for a real-time signal; "signal 99" for a number without a name.
std::string signal_name(int number);

/// The number of "SIGTERM" or "TERM", real-time signals and aliases such as SIGIOT included.
/// Upper case only, as the constants are written.
std::optional<int> signal_number(std::string_view name);

}  // namespace lockstep
