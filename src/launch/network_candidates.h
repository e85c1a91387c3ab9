#pragma once

#include <functional>
#include <string>

#include "launch/addresses.h"
#include "launch/messages.h"
#include "lockstep/environment.h"

namespace lockstep {

struct NetworkWishes {
  std::string favourite;   // the numeric address from which this node reaches the coordinator
  bool is_pinned = false;  // by --local-addr: others are not allowed
  std::string gloo;        // GLOO_SOCKET_IFNAME; empty: not set
  std::string nccl;        // NCCL_SOCKET_IFNAME, likewise
};

/// At most eight addresses at which other nodes may reach this machine, the favourite first; then
/// those of real interfaces before bridges of containers and virtual machines, the faster before
/// the slower, IPv4 before IPv6. Where the user has named an address or interfaces, only those are
/// allowed. Ports are left 0; so is the round. `speed_of` takes an interface's name.
Addresses network_candidates(const LocalMachine& machine, const NetworkWishes& wishes,
                             const std::function<int(const std::string&)>& speed_of);

inline bool is_v4(const NodeAddress& address) {
  return address.address.find(':') == std::string::npos;
}

/// In Mbit/s, as the kernel knows it; 0 where it does not.
int interface_speed(const std::string& interface);

/// Whether an interface is one that NCCL_SOCKET_IFNAME names: beginnings of names between commas,
/// whole names after "=", all but these after "^".
bool nccl_takes(const std::string& wish, const std::string& interface);

}  // namespace lockstep
