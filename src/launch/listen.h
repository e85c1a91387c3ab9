#pragma once

#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

/// A TCP socket that listens at an address of this machine. Port 0 takes a free one; it is held
/// from then on, so that nobody can come between its choice and its use. "::" serves IPv4 as well.
///
/// The address is numeric: names are never resolved. The descriptor is not inherited and does not
/// block. Throws InvalidArgument for anything that is no such address or port, and SystemError,
/// which names both and who holds the port, if it cannot be listened at.
UniqueFd listen_on(const std::string& numeric_address, int port);

/// The same at all addresses of this machine, of both families where it has IPv6.
UniqueFd listen_everywhere(int port);

/// The same at each of several addresses, all with one port. One that this machine does not have
/// (any more) is left out as long as another remains.
std::vector<UniqueFd> listen_on_each(const std::vector<std::string>& numeric_addresses, int port);

/// The port that a socket is bound to.
int port_of(const UniqueFd& socket);

}  // namespace lockstep
