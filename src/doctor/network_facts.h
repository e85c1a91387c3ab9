#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "launch/ip_address.h"

namespace lockstep {

struct InterfaceAddress {
  IpAddress address;
  int prefix_bits = 32;
};

struct InterfaceFacts {
  std::string name;
  bool up = false;       // switched on
  bool carrier = false;  // and connected
  bool loopback = false;
  int mtu = 0;
  std::optional<int> speed_mbit;  // where the driver knows it
  std::vector<InterfaceAddress> addresses;
};

/// A port of an InfiniBand, RoCE or similar device.
struct RdmaPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  std::string state;       // "ACTIVE", "DOWN"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::string link_layer;  // "InfiniBand", "Ethernet"

  bool active() const { return state == "ACTIVE"; }
};

struct NetworkFacts {
  std::string host;
  std::vector<IpAddress> host_addresses;  // what the host's own name stands for
  std::string resolver_problem;           // why that is none
  std::vector<InterfaceFacts> interfaces;
  std::vector<RdmaPort> rdma_ports;
  bool rdma_can_be_opened = false;  // /dev/infiniband/uverbs*

  /// Addresses that another node may reach this one at.
  std::vector<InterfaceAddress> outer_addresses() const;
  const InterfaceFacts* interface(const std::string& name) const;
  bool has_active_rdma() const;
};

/// Where the kernel describes devices; tests give folders of their own.
struct DeviceFolders {
  std::string sys = "/sys";
  std::string dev = "/dev";
};

NetworkFacts read_network(const DeviceFolders& folders = {});
std::vector<RdmaPort> read_rdma_ports(const DeviceFolders& folders);

void judge_network(const NetworkFacts& facts, bool several_nodes, FindingList& list);

/// Whether both lie in the network of this many bits.
bool same_network(const IpAddress& one, const IpAddress& other, int prefix_bits);

}  // namespace lockstep
