#include "launch/addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <climits>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Addresses for documentation: no machine has them, so the way there is the default route.
constexpr const char* kFarAway[] = {"198.51.100.1", "2001:db8::1"};

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) {
    throw_errno("cannot read this machine's name");
  }
  return name;
}

int prefix_length(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  const auto* bytes = mask->sa_family == AF_INET6
                          ? reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr
                          : reinterpret_cast<const std::uint8_t*>(
                                &reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
  int length = 0;
  for (int i = 0; i < (mask->sa_family == AF_INET6 ? 16 : 4); ++i) {
    length += std::popcount(bytes[i]);
  }
  return length;
}

// The address that packets to `target` would carry. Connecting a datagram socket sends nothing; it
// only makes the kernel choose a route.
std::optional<IpAddress> source_towards(const std::string& target, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(target.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  std::optional<IpAddress> source;
  const UniqueFd socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket && ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0) {
    sockaddr_storage local = {};
    socklen_t length = sizeof local;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0) {
      source = IpAddress::from(reinterpret_cast<const sockaddr*>(&local));
    }
  }
  ::freeaddrinfo(found);
  return source;
}

bool reaches_others(const IpAddress& address) {
  return !address.is_loopback() && !address.is_link_local() && !address.is_unspecified();
}

// Where this machine is reached by others, when it is not known who they are.
std::optional<IpAddress> main_address(const LocalMachine& machine) {
  for (const char* target : kFarAway) {
    const auto source = source_towards(target, 9);
    if (source && reaches_others(*source) && machine.has(*source)) {
      return source;
    }
  }
  for (const int family : {AF_INET, AF_INET6}) {
    for (const LocalAddress& each : machine.addresses) {
      if (each.up && each.address.family() == family && reaches_others(each.address)) {
        return each.address;
      }
    }
  }
  return std::nullopt;
}

bool same_name(const std::string& left, const std::string& right) {
  return ::strcasecmp(left.c_str(), right.c_str()) == 0;
}

// Whether the user said "on this machine" and not a name that happens to mean it here.
bool says_loopback(const std::string& host) {
  const auto address = IpAddress::parse(host);
  return same_name(host, "localhost") || (address && address->is_loopback());
}

// "10.0.0.1 (eth0), fd00::1 (eth1)".
std::string list_addresses(const LocalMachine& machine) {
  std::string text;
  for (const LocalAddress& each : machine.addresses) {
    if (!each.up || !reaches_others(each.address)) continue;
    text += concat(text.empty() ? "" : ", ", each.address.to_string(), " (", each.interface, ")");
  }
  return text.empty() ? "none" : text;
}

std::string from_local_addr(const AdvertiseOptions& options, const LocalMachine& machine) {
  const std::string host = parse_host(*options.local_addr, "--local-addr");
  std::string reason;
  const std::vector<IpAddress> addresses = resolve(host, &reason);
  if (addresses.empty()) {
    throw InvalidArgument(concat("--local-addr is '", host, "', which cannot be resolved: ", reason,
                                 "; give one of this node's addresses"));
  }
  const auto here = [&](const IpAddress& address) {
    return reaches_others(address) && machine.has(address);
  };
  const auto usable = std::find_if(addresses.begin(), addresses.end(), here);
  if (usable != addresses.end()) {
    return usable->to_string();
  }
  if (reaches_others(addresses.front())) {
    throw InvalidArgument(
        concat("--local-addr is '", options.local_addr.value(),
               "', which this machine does not have; it has: ", list_addresses(machine)));
  }
  const bool all_on_this_machine =
      options.max_nodes == 1 || says_loopback(host) || says_loopback(options.coordinator.host);
  if (addresses.front().is_unspecified() || !all_on_this_machine) {
    throw InvalidArgument(concat("--local-addr is '", host, "', which is ",
                                 addresses.front().to_string(),
                                 " here; no other node reaches this one there"));
  }
  return addresses.front().to_string();
}

}  // namespace

LocalMachine LocalMachine::current() {
  LocalMachine machine{.name = host_name(), .addresses = {}};
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw_errno("cannot list this machine's network addresses");
  }
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (const auto address = IpAddress::from(each->ifa_addr)) {
      machine.addresses.push_back({.address = *address,
                                   .interface = each->ifa_name,
                                   .up = (each->ifa_flags & IFF_UP) != 0,
                                   .prefix_length = prefix_length(each->ifa_netmask)});
    }
  }
  ::freeifaddrs(list);
  return machine;
}

bool LocalMachine::has(const IpAddress& address) const {
  return interface_of(address).has_value();
}

std::optional<std::string> LocalMachine::interface_of(const IpAddress& address) const {
  for (const LocalAddress& each : addresses) {
    if (each.address == address) {
      return each.interface;
    }
  }
  return std::nullopt;
}

bool is_this_machine(const std::string& host, const LocalMachine& machine) {
  // Before asking the resolver: inside a container it may know neither.
  if (same_name(host, "localhost") || same_name(host, machine.name)) {
    return true;
  }
  const std::vector<IpAddress> addresses = resolve(host);
  return std::any_of(addresses.begin(), addresses.end(), [&](const IpAddress& address) {
    return address.is_loopback() || address.is_unspecified() || machine.has(address);
  });
}

bool is_this_machine(const std::string& host) {
  return is_this_machine(host, LocalMachine::current());
}

std::vector<std::string> addresses_to_listen_at(const std::string& host,
                                                const std::vector<IpAddress>& resolved,
                                                const LocalMachine& machine) {
  if (same_name(host, "localhost")) return {"127.0.0.1"};
  std::vector<std::string> ours;
  bool is_reached_by_others = says_loopback(host);  // nobody else is meant to come
  for (const IpAddress& address : resolved) {
    // A link-local one cannot be listened at without its interface.
    if (address.is_link_local()) continue;
    if (!address.is_loopback() && !machine.has(address)) continue;
    ours.push_back(address.to_string());
    is_reached_by_others = is_reached_by_others || reaches_others(address);
  }
  const bool has_network = std::ranges::any_of(machine.addresses, [](const LocalAddress& each) {
    return each.up && reaches_others(each.address);
  });
  if (!is_reached_by_others && has_network) return {};
  return ours;
}

std::string advertised_address(const AdvertiseOptions& options, const LocalMachine& machine) {
  if (options.local_addr) {
    return from_local_addr(options, machine);
  }
  if (options.max_nodes == 1 || says_loopback(options.coordinator.host)) {
    return "127.0.0.1";
  }
  for (const IpAddress& address : resolve(options.coordinator.host)) {
    // Many machines have their own name in /etc/hosts as 127.0.1.1: true here, useless elsewhere.
    if (reaches_others(address)) {
      const auto source = source_towards(address.to_string(), options.coordinator.port);
      if (source && reaches_others(*source)) {
        return source->to_string();
      }
    }
  }
  if (const auto address = main_address(machine)) {
    return address->to_string();
  }
  throw SystemError(concat("this node ('", machine.name,
                           "') has no network address that another node could reach; connect it, "
                           "or name one with --local-addr"));
}

}  // namespace lockstep
