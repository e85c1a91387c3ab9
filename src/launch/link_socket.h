#pragma once

#include <chrono>
#include <string>

#include "core/unique_fd.h"
#include "launch/ip_address.h"

namespace lockstep {

/// TCP sockets as links between agents use them: non-blocking, closed by exec.

/// Begins to connect; the socket becomes writable when it is decided. Throws SystemError if it is
/// decided already: no route, no descriptor left.
UniqueFd begin_connect(const IpAddress& address, int port);

/// Why a connect that has become writable failed: a value of errno; 0 if it did not.
int connect_error(int socket);

/// Small messages leave at once, and a peer that vanished without a word is noticed after
/// `dead_peer_timeout`, whether or not there is something to send.
void prepare_link_socket(int socket, std::chrono::milliseconds dead_peer_timeout);

/// The numeric addresses of a connection's two ends, without ports; empty if it is gone.
std::string peer_address(int socket);
std::string local_address(int socket);

}  // namespace lockstep
