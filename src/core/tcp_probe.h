#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// Waits until something accepts connections at host:port. False when the time is over; throws
/// InvalidArgument for a host name that cannot be resolved.
///
/// Libraries that connect by themselves print a page of warnings and back off for a second at a
/// time while the other side is not up yet; this is quiet and tries again at once.
bool wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace lockstep
