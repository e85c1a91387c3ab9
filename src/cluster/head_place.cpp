#include "cluster/head_place.h"

#include <algorithm>

#include "launch/ip_address.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

bool reaches_others(const LocalAddress& address) {
  return address.up && !address.address.is_loopback() && !address.address.is_link_local() &&
         !address.address.is_unspecified();
}

void add_once(std::vector<std::string>& list, const std::string& item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

// What --rdzv-endpoint stands for, as far as it is here. A machine's own name often stands for
// loopback on that machine, where nobody else comes.
std::vector<std::string> named_addresses(const HeadPlan& plan, const LocalMachine& machine) {
  std::vector<std::string> addresses;
  if (plan.listen_host.empty()) return addresses;
  for (const IpAddress& each : resolve(plan.listen_host)) {
    const bool is_use = !each.is_loopback() || plan.is_all_here();
    if (is_use && machine.has(each)) add_once(addresses, each.to_string());
  }
  return addresses;
}

// The address from which packets to that machine leave is the one that it can answer to.
std::optional<std::string> address_towards(const HeadNode& node, const LocalMachine& machine) {
  if (node.starter.kind == StarterKind::local || resolve(node.host.name).empty()) {
    return std::nullopt;
  }
  try {
    const std::string address =
        advertised_address({.max_nodes = 2,
                            .local_addr = std::nullopt,
                            .coordinator = {.host = node.host.name, .port = 22}},
                           machine);
    const auto parsed = IpAddress::parse(address);
    if (parsed && !parsed->is_loopback()) return address;
  } catch (const Error&) {
    // The others remain.
  }
  return std::nullopt;
}

std::vector<std::string> told_to(const HeadNode& node, const HeadPlan& plan,
                                 const LocalMachine& machine) {
  std::vector<std::string> hosts;
  if (!plan.listen_host.empty()) hosts.push_back(plan.listen_host);
  if (const auto address = address_towards(node, machine)) add_once(hosts, *address);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const LocalAddress& each : machine.addresses) {
      if (each.address.family() != family || !reaches_others(each)) continue;
      add_once(hosts, each.address.to_string());
    }
  }
  // To others it may stand for an address that leads here and is not one of this machine's.
  add_once(hosts, machine.name);
  return hosts;
}

}  // namespace

HeadPlace find_head_place(const HeadPlan& plan, const LocalMachine& machine) {
  std::vector<std::string> chosen = named_addresses(plan, machine);
  if (chosen.empty() && plan.is_all_here()) chosen = {kLoopback};
  HeadPlace place{.told = {}, .own = chosen};
  for (const HeadNode& node : plan.nodes) {
    place.told.push_back(chosen.empty() ? told_to(node, plan, machine) : chosen);
    for (const std::string& host : place.told.back()) {
      const auto address = IpAddress::parse(host);
      if (address && machine.has(*address)) add_once(place.own, host);
    }
  }
  if (place.own.empty()) place.own = {kLoopback};  // this machine has nothing else
  return place;
}

HeadPort open_head_port(const HeadPlan& plan) {
  const HeadPlace place = find_head_place(plan, LocalMachine::current());
  HeadPort result{.listeners = listen_on_each(place.own, plan.listen_port), .endpoints = {}};
  const int port = port_of(result.listeners.front());
  for (const std::vector<std::string>& hosts : place.told) {
    std::vector<Endpoint> endpoints;
    for (const std::string& host : hosts) endpoints.push_back({.host = host, .port = port});
    result.endpoints.push_back(std::move(endpoints));
  }
  return result;
}

}  // namespace lockstep
