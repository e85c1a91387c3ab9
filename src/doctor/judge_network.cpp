#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "doctor/network_facts.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += concat(text.empty() ? "" : ", ", word);
  return text;
}

std::string list_addresses(const std::vector<IpAddress>& addresses) {
  std::vector<std::string> words;
  for (const IpAddress& each : addresses) {
    if (std::ranges::find(words, each.to_string()) == words.end())
      words.push_back(each.to_string());
  }
  return join(words);
}

bool is_here(const NetworkFacts& facts, const IpAddress& address) {
  return std::ranges::any_of(facts.interfaces, [&](const InterfaceFacts& interface) {
    return std::ranges::any_of(
        interface.addresses, [&](const InterfaceAddress& each) { return each.address == address; });
  });
}

// On several nodes a line names the node, and says once what many of them share.
void judge_own_name(const NetworkFacts& facts, bool several_nodes, FindingList& list) {
  const std::string name = several_nodes ? "its own name" : concat("'", facts.host, "'");
  const std::string cure =
      "put the machine's address and name into DNS or /etc/hosts; lockstep run gives workers "
      "addresses, but Gloo and other programs look the name up";
  if (facts.host_addresses.empty()) {
    list.warning("name", concat(name, " cannot be resolved: ", facts.resolver_problem), cure);
    return;
  }
  const bool only_loopback = std::ranges::all_of(
      facts.host_addresses, [](const IpAddress& each) { return each.is_loopback(); });
  const bool elsewhere = std::ranges::none_of(facts.host_addresses, [&](const IpAddress& each) {
    return each.is_loopback() || is_here(facts, each);
  });
  const std::string what = concat(name, " is ", list_addresses(facts.host_addresses), " here");
  if (elsewhere) {
    list.warning("name", concat(what, ", which this machine does not have"), cure);
  } else if (only_loopback) {
    list.note("name",
              concat(what,
                     ": a program that tells others its name's address (Gloo without "
                     "GLOO_SOCKET_IFNAME) cannot be reached"),
              "lockstep run sets GLOO_SOCKET_IFNAME; elsewhere, correct /etc/hosts");
  } else {
    list.ok("name", what);
  }
}

std::string describe(const InterfaceFacts& interface) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& each : interface.addresses) {
    if (each.address.is_link_local()) continue;
    addresses.push_back(concat(each.address.to_string(), "/", each.prefix_bits));
  }
  std::string text = concat(interface.name, " ", join(addresses), " (MTU ", interface.mtu);
  if (interface.speed_mbit) text += concat(", ", *interface.speed_mbit, " Mbit/s");
  return text + ")";
}

void judge_interfaces(const NetworkFacts& facts, bool several_nodes, FindingList& list) {
  constexpr int kSlowMbit = 1000;
  std::vector<std::string> usable;
  for (const InterfaceFacts& interface : facts.interfaces) {
    if (interface.loopback) {
      if (!interface.up) {
        list.error("interfaces",
                   concat(interface.name, " is down: ranks of this machine meet there"),
                   concat("ip link set ", interface.name, " up"));
      }
      continue;
    }
    if (interface.addresses.empty()) continue;
    if (!interface.up || !interface.carrier) {
      list.note(
          "interfaces",
          concat(interface.name, " has an address and ",
                 interface.up ? "no connection" : "is switched off"),
          interface.up ? "plug it in, or take its address away: a name may stand for it" : "");
      continue;
    }
    const bool outer = std::ranges::any_of(interface.addresses, [](const InterfaceAddress& each) {
      return !each.address.is_link_local();
    });
    if (!outer) continue;
    usable.push_back(describe(interface));
    if (interface.speed_mbit && *interface.speed_mbit < kSlowMbit) {
      list.warning("interfaces",
                   concat(interface.name, " runs at ", *interface.speed_mbit, " Mbit/s"),
                   "look at its cable and the switch's port: both ends agreed on too little");
    }
  }
  if (!usable.empty()) {
    list.ok("interfaces", join(usable));
  } else if (several_nodes) {
    list.error("interfaces", "this machine has no address that another could reach",
               "connect it to a network");
  } else {
    list.note("interfaces",
              "this machine has no network but loopback, which is enough for one node");
  }
}

void judge_rdma(const NetworkFacts& facts, FindingList& list) {
  if (facts.rdma_ports.empty()) return;
  std::vector<std::string> active;
  for (const RdmaPort& port : facts.rdma_ports) {
    const std::string name = concat(port.device, " port ", port.port);
    if (port.active()) {
      active.push_back(concat(name, " ", port.rate, " ", port.link_layer));
    } else {
      list.warning("infiniband", concat(name, " is ", port.state, ", not ACTIVE"),
                   port.link_layer == "InfiniBand"
                       ? "look at its cable and whether a subnet manager runs (ibstat, sminfo)"
                       : "look at its cable and the switch's port (ip link)");
    }
  }
  if (!facts.rdma_can_be_opened) {
    list.error("infiniband",
               "there are devices, but no /dev/infiniband/uverbs*: NCCL falls back to sockets",
               "docker run --device=/dev/infiniband; in Kubernetes ask for the RDMA resource; "
               "outside of containers modprobe ib_uverbs");
  } else if (!active.empty()) {
    list.ok("infiniband", join(active));
  }
}

std::array<unsigned char, 16> bytes_of(const IpAddress& address) {
  std::array<unsigned char, 16> bytes = {};
  ::inet_pton(address.family(), address.to_string().c_str(), bytes.data());
  return bytes;
}

}  // namespace

bool same_network(const IpAddress& one, const IpAddress& other, int prefix_bits) {
  if (one.family() != other.family()) return false;
  const auto first = bytes_of(one);
  const auto second = bytes_of(other);
  for (int bit = 0; bit < std::min(prefix_bits, 128); ++bit) {
    const auto at = static_cast<std::size_t>(bit / 8);
    const unsigned mask = 0x80U >> (bit % 8);
    if (((first[at] ^ second[at]) & mask) != 0) return false;
  }
  return true;
}

std::vector<InterfaceAddress> NetworkFacts::outer_addresses() const {
  std::vector<InterfaceAddress> addresses;
  for (const InterfaceFacts& each : interfaces) {
    if (each.loopback || !each.up || !each.carrier) continue;
    for (const InterfaceAddress& address : each.addresses) {
      if (!address.address.is_link_local()) addresses.push_back(address);
    }
  }
  return addresses;
}

const InterfaceFacts* NetworkFacts::interface(const std::string& name) const {
  const auto found = std::ranges::find(interfaces, name, &InterfaceFacts::name);
  return found == interfaces.end() ? nullptr : &*found;
}

bool NetworkFacts::has_active_rdma() const {
  return std::ranges::any_of(rdma_ports, [](const RdmaPort& port) { return port.active(); });
}

void judge_network(const NetworkFacts& facts, bool several_nodes, FindingList& list) {
  judge_own_name(facts, several_nodes, list);
  judge_interfaces(facts, several_nodes, list);
  judge_rdma(facts, list);
}

}  // namespace lockstep
