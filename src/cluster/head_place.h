#pragma once

#include <string>
#include <vector>

#include "cluster/head_plan.h"
#include "core/unique_fd.h"
#include "launch/addresses.h"
#include "launch/endpoint.h"

namespace lockstep {

/// Where a head is for the agents that it starts.
struct HeadPlace {
  std::vector<std::vector<std::string>> told;  // for each node of the plan, the likeliest first
  std::vector<std::string> own;                // addresses of this machine at which it listens
};

/// The addresses at which agents may find a head on this machine, and the one or ones at which it
/// listens for that.
///
/// If --rdzv-endpoint names addresses of this machine, it is these alone. Otherwise a machine is
/// told the address from which packets to it leave, then all others that reach anybody, and those
/// are listened at: not loopback, link-local addresses and interfaces that are down. Loopback alone
/// where all agents are on this machine. May wait for DNS.
HeadPlace find_head_place(const HeadPlan& plan, const LocalMachine& machine);

/// A head's open port.
struct HeadPort {
  std::vector<UniqueFd> listeners;               // not empty, all with one port
  std::vector<std::vector<Endpoint>> endpoints;  // for each node of the plan, the likeliest first
};

/// Opens it on this machine, at no other address than agents are told. Throws SystemError.
HeadPort open_head_port(const HeadPlan& plan);

}  // namespace lockstep
