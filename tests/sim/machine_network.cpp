// What a machine answers when it is asked about the network, and whom it reaches.
#include <algorithm>

#include "lockstep/error.h"
#include "sim/machine.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

constexpr Time kProbeLimit = 2s;
constexpr const char* kSecondNetwork = "10.1.";

}  // namespace

bool Machine::is_reached_at(const ProbeTarget& target) const {
  if (!alive() || finish_ || target.id != id_ || target.port != probe_port_) return false;
  if (shared_.network->is_cut_off(index_)) return false;
  if (target.at == address_in(kSecondNetwork)) return shared_.scenario.second_network;
  return target.at == info().address &&
         !shared_.scenario.nodes[static_cast<std::size_t>(index_)].dead_address;
}

void Machine::answer(const Message& question) {
  if (const auto* ask = std::get_if<AskAddresses>(&question)) {
    probe_port_ = shared_.random.between(1024, 65535);
    Addresses addresses{.round = ask->round, .addresses = {}, .named_by = ""};
    addresses.addresses.push_back({.address = info().address,
                                   .prefix_length = 16,
                                   .interface = "eth0",
                                   .speed = 1000,
                                   .port = probe_port_});
    if (shared_.scenario.second_network) {
      addresses.addresses.push_back({.address = address_in(kSecondNetwork),
                                     .prefix_length = 16,
                                     .interface = "eth1",
                                     .speed = 1000,
                                     .port = probe_port_});
    }
    later(shared_.random.between(0us, 5ms), [this, addresses] { tell_coordinator(addresses); });
  } else if (const auto* probes = std::get_if<ProbeNodes>(&question)) {
    probe(*probes);
  } else if (std::holds_alternative<Prepare>(question)) {
    probe_port_ = 0;
  }
}

// What is not reached at once is tried until the limit, as TCP does.
void Machine::probe(const ProbeNodes& probes) {
  const auto reaches = [this](const ProbeTarget& target) {
    return !shared_.network->is_cut_off(index_) && shared_.is_reached(target);
  };
  later(shared_.random.between(100us, 5ms), [this, probes, reaches] {
    std::vector<ProbeTarget> missing;
    std::ranges::copy_if(probes.targets, std::back_inserter(missing),
                         [&](const ProbeTarget& target) { return !reaches(target); });
    if (missing.empty()) return tell_coordinator(Probed{probes.round, {}});
    later(kProbeLimit, [this, round = probes.round, missing, reaches] {
      Probed answer{.round = round, .failures = {}};
      for (const ProbeTarget& target : missing) {
        if (reaches(target)) continue;
        answer.failures.push_back(
            {.node = target.node, .address = target.address, .reason = "no answer"});
      }
      tell_coordinator(answer);
    });
  });
}

void Machine::tell_coordinator(const Message& message) {
  if (link_ && !finish_) shared_.network->send_to_coordinator(*link_, encode(message));
}

}  // namespace lockstep::sim
