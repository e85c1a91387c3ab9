#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// Waits until something accepts connections at host:port. False when the time is over; throws
/// InvalidArgument if by then the host's name could still not be resolved (in a cluster a name may
/// appear later than those who look for it).
///
/// Libraries that connect by themselves print a page of warnings and back off for a second at a
/// time while the other side is not up yet; this is quiet and tries again at once.
bool wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

/// Whether a host is this machine by name: "localhost", "::1", 127.x.
bool is_loopback(const std::string& host);

}  // namespace lockstep
