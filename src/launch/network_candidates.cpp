#include "launch/network_candidates.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <tuple>

#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostAddresses = 8;

// Bridges that every machine may have with the same address, and on which no other machine is.
constexpr std::array<std::string_view, 12> kVirtual = {"docker", "virbr",   "br-",  "veth",
                                                       "cni",    "flannel", "lxc",  "lxd",
                                                       "podman", "kube",    "cali", "vmnet"};

bool is_virtual(const std::string& interface) {
  return std::ranges::any_of(kVirtual,
                             [&](std::string_view name) { return interface.starts_with(name); });
}

bool reaches_others(const LocalAddress& local) {
  const IpAddress& address = local.address;
  return local.up && !address.is_loopback() && !address.is_link_local() &&
         !address.is_unspecified();
}

// Gloo wants whole names.
bool gloo_takes(const std::string& wish, const std::string& interface) {
  return std::ranges::any_of(split(wish, ','),
                             [&](std::string_view name) { return trim(name) == interface; });
}

// Which addresses are allowed, and by whose word.
std::string rule_out(std::vector<NodeAddress>& addresses, const NetworkWishes& wishes) {
  const auto keep = [&](auto fits) {
    if (std::ranges::none_of(addresses, fits)) return false;
    for (NodeAddress& each : addresses) each.allowed = each.allowed && fits(each);
    return true;
  };
  if (wishes.is_pinned) {
    keep([&](const NodeAddress& each) { return each.address == wishes.favourite; });
    return "--local-addr";
  }
  std::string words;
  if (!wishes.gloo.empty() &&
      keep([&](const NodeAddress& each) { return gloo_takes(wishes.gloo, each.interface); })) {
    words = concat("GLOO_SOCKET_IFNAME=", wishes.gloo);
  }
  // Where the two contradict each other there is no right address; the first counts.
  const auto both = [&](const NodeAddress& each) {
    return each.allowed && nccl_takes(wishes.nccl, each.interface);
  };
  if (!wishes.nccl.empty() && keep(both)) {
    words += concat(words.empty() ? "" : " and ", "NCCL_SOCKET_IFNAME=", wishes.nccl);
  }
  return words;
}

}  // namespace

bool nccl_takes(const std::string& wish, const std::string& interface) {
  std::string_view rest = wish;
  const bool except = rest.starts_with('^');
  if (except) rest.remove_prefix(1);
  const bool whole = rest.starts_with('=');
  if (whole) rest.remove_prefix(1);
  const bool found = std::ranges::any_of(split(rest, ','), [&](std::string_view name) {
    return !name.empty() && (whole ? interface == name : interface.starts_with(name));
  });
  return found != except;
}

int interface_speed(const std::string& interface) {
  std::ifstream file(concat("/sys/class/net/", interface, "/speed"));
  int speed = 0;
  // Interfaces that are no hardware have none, or -1.
  return file >> speed && speed > 0 ? speed : 0;
}

Addresses network_candidates(const LocalMachine& machine, const NetworkWishes& wishes,
                             const std::function<int(const std::string&)>& speed_of) {
  Addresses answer;
  std::vector<NodeAddress>& addresses = answer.addresses;
  bool has_favourite = false;
  for (const LocalAddress& local : machine.addresses) {
    const std::string text = local.address.to_string();
    has_favourite = has_favourite || text == wishes.favourite;
    if (text != wishes.favourite && !reaches_others(local)) continue;
    addresses.push_back({.address = text,
                         .prefix_length = local.prefix_length,
                         .interface = local.interface,
                         .speed = speed_of(local.interface)});
  }
  if (!has_favourite) {  // one that only a router has
    const bool v4 = wishes.favourite.find(':') == std::string::npos;
    addresses.push_back(
        {.address = wishes.favourite, .prefix_length = v4 ? 32 : 128, .interface = "?"});
  }
  answer.named_by = rule_out(addresses, wishes);
  std::ranges::stable_sort(addresses, std::less<>(), [&](const NodeAddress& each) {
    return std::tuple(!each.allowed, each.address != wishes.favourite, is_virtual(each.interface),
                      -each.speed, !is_v4(each));
  });
  if (addresses.size() > kMostAddresses) addresses.resize(kMostAddresses);
  return answer;
}

}  // namespace lockstep
