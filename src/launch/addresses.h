#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/endpoint.h"
#include "launch/ip_address.h"

namespace lockstep {

/// An address that one of this machine's network interfaces has.
struct LocalAddress {
  IpAddress address;
  std::string interface;
  bool up = true;  // the interface is switched on
  int prefix_length = 0;
};

/// What this machine is called and where it is reached. Code that decides by it takes one, so that
/// it can be tested with any machine.
struct LocalMachine {
  std::string name;  // gethostname()
  std::vector<LocalAddress> addresses;

  /// This machine, now.
  static LocalMachine current();

  bool has(const IpAddress& address) const;

  /// The interface with this address, which NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME take;
  /// std::nullopt if it is not one of ours.
  std::optional<std::string> interface_of(const IpAddress& address) const;
};

/// Whether a host is this machine: its name, a loopback address, or a name of which any address
/// belongs to any of our interfaces. torchrun compares with the addresses of the machine's name
/// only, so that a second network or an alias leaves a job without a host. A name that is not known
/// is not this machine. May wait for DNS.
bool is_this_machine(const std::string& host, const LocalMachine& machine);
bool is_this_machine(const std::string& host);

/// Where a node that hosts is to listen, numeric: at the addresses that an endpoint's host stands
/// for (`resolved`, as resolve() gave them) and that this machine has. Empty: at all of them,
/// because others know the host by an address that this machine does not know: behind a translation
/// of addresses, or where its own name means loopback here, as in many /etc/hosts.
std::vector<std::string> addresses_to_listen_at(const std::string& host,
                                                const std::vector<IpAddress>& resolved,
                                                const LocalMachine& machine);

struct AdvertiseOptions {
  int max_nodes = 1;
  std::optional<std::string> local_addr;  // --local-addr
  Endpoint coordinator;                   // what the other nodes connect to
};

/// The numeric address at which other nodes, and this node's workers, reach this node.
///
/// --local-addr counts wherever it is given. Otherwise one node gets loopback, and several get the
/// address from which this node's packets to the coordinator leave, which is the one that the
/// coordinator can answer to. Never a name: names that only one machine knows are why jobs hang.
///
/// Throws InvalidArgument if --local-addr cannot be an address of this node for others, and
/// SystemError if no address but loopback exists. May wait for DNS.
std::string advertised_address(const AdvertiseOptions& options, const LocalMachine& machine);

}  // namespace lockstep
