#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "doctor/bounded.h"
#include "doctor/network_facts.h"
#include "launch/addresses.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kResolverLimit{5000};

template <typename Value>
std::optional<Value> value_in(const fs::path& path) {
  std::ifstream file(path);
  Value value{};
  if (!(file >> value)) return std::nullopt;
  return value;
}

std::string line_in(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int bits_of(const sockaddr* mask) {
  if (mask == nullptr) return 128;
  int bits = 0;
  if (mask->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, mask, sizeof v4);
    bits = std::popcount(v4.sin_addr.s_addr);
  } else if (mask->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, mask, sizeof v6);
    for (const unsigned char byte : v6.sin6_addr.s6_addr) bits += std::popcount(byte);
  }
  return bits;
}

InterfaceFacts& interface_named(std::vector<InterfaceFacts>& list, const std::string& name) {
  const auto found = std::ranges::find(list, name, &InterfaceFacts::name);
  if (found != list.end()) return *found;
  return list.emplace_back(InterfaceFacts{.name = name});
}

std::vector<InterfaceFacts> read_interfaces(const DeviceFolders& folders) {
  std::vector<InterfaceFacts> interfaces;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("cannot list this machine's network addresses");
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    InterfaceFacts& facts = interface_named(interfaces, each->ifa_name);
    facts.up = (each->ifa_flags & IFF_UP) != 0;
    facts.carrier = (each->ifa_flags & IFF_RUNNING) != 0;
    facts.loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (const auto address = IpAddress::from(each->ifa_addr)) {
      facts.addresses.push_back({.address = *address, .prefix_bits = bits_of(each->ifa_netmask)});
    }
  }
  ::freeifaddrs(list);
  for (InterfaceFacts& facts : interfaces) {
    const fs::path folder = fs::path(folders.sys) / "class/net" / facts.name;
    facts.mtu = value_in<int>(folder / "mtu").value_or(0);
    facts.speed_mbit = value_in<int>(folder / "speed");  // -1 where nobody knows
    if (facts.speed_mbit && *facts.speed_mbit <= 0) facts.speed_mbit.reset();
  }
  return interfaces;
}

bool has_openable_rdma(const DeviceFolders& folders) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(folders.dev) / "infiniband", error)) {
    if (entry.path().filename().string().starts_with("uverbs")) return true;
  }
  return false;
}

}  // namespace

std::vector<RdmaPort> read_rdma_ports(const DeviceFolders& folders) {
  std::vector<RdmaPort> ports;
  std::error_code error;
  for (const auto& device :
       fs::directory_iterator(fs::path(folders.sys) / "class/infiniband", error)) {
    std::error_code no_ports;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", no_ports)) {
      std::string state = line_in(port.path() / "state");  // "4: ACTIVE"
      if (const auto colon = state.find(": "); colon != std::string::npos) {
        state.erase(0, colon + 2);
      }
      ports.push_back({.device = device.path().filename(),
                       .port = std::atoi(port.path().filename().c_str()),
                       .state = state,
                       .rate = line_in(port.path() / "rate"),
                       .link_layer = line_in(port.path() / "link_layer")});
    }
  }
  std::ranges::sort(ports, {},
                    [](const RdmaPort& port) { return std::pair(port.device, port.port); });
  return ports;
}

NetworkFacts read_network(const DeviceFolders& folders) {
  NetworkFacts facts;
  facts.host = LocalMachine::current().name;
  using Answer = std::pair<std::vector<IpAddress>, std::string>;
  const auto answer = run_bounded(kResolverLimit, [host = facts.host]() -> Answer {
    Answer found;
    found.first = resolve(host, &found.second);
    return found;
  });
  if (answer) {
    facts.host_addresses = answer->first;
    facts.resolver_problem = answer->second;
  } else {
    facts.resolver_problem =
        concat("the resolver does not answer within ", kResolverLimit.count() / 1000, " s");
  }
  facts.interfaces = read_interfaces(folders);
  facts.rdma_ports = read_rdma_ports(folders);
  facts.rdma_can_be_opened = has_openable_rdma(folders);
  return facts;
}

}  // namespace lockstep
