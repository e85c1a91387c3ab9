#include "launch/network_desk.h"

#include <set>
#include <utility>
#include <variant>

#include "launch/listen.h"
#include "launch/network_candidates.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kProbeLimit{2000};

// Both ends must have the same: whoever answers is this very process.
std::string name_of(const std::string& node_id) {
  return concat("lockstep-probe ", node_id);
}

}  // namespace

struct NetworkDesk::Round {
  std::uint64_t number = 0;
  std::vector<ProbeTarget> targets;
  std::vector<std::unique_ptr<LinkClient>> clients;  // by target
  std::set<std::size_t> undecided;                   // targets
  std::vector<ProbeFailure> failures;
  EventLoop::TimerId limit{};
};

NetworkDesk::NetworkDesk(EventLoop& loop, const JobPlan& plan, Send send)
    : loop_(loop), plan_(plan), send_(std::move(send)) {}

NetworkDesk::~NetworkDesk() {
  close();
}

void NetworkDesk::close() {
  if (round_) loop_.cancel(round_->limit);
  round_.reset();
  listeners_.clear();
}

void NetworkDesk::on_message(const Message& message) {
  if (const auto* ask = std::get_if<AskAddresses>(&message)) {
    answer(*ask);
  } else if (const auto* probes = std::get_if<ProbeNodes>(&message)) {
    probe(*probes);
  } else if (std::holds_alternative<Prepare>(message) || std::holds_alternative<Finish>(message)) {
    close();
  }
}

void NetworkDesk::answer(const AskAddresses& ask) {
  close();
  const auto variable = [&](const char* name) { return plan_.environment.get(name).value_or(""); };
  Addresses addresses = network_candidates(LocalMachine::current(),
                                           {.favourite = plan_.agent.self.address,
                                            .is_pinned = plan_.options.local_addr.has_value(),
                                            .gloo = variable("GLOO_SOCKET_IFNAME"),
                                            .nccl = variable("NCCL_SOCKET_IFNAME")},
                                           interface_speed);
  addresses.round = ask.round;
  for (NodeAddress& address : addresses.addresses) listen_at(address);
  // Where nobody can listen nobody can be reached; but what the user has named is probed, and the
  // coordinator says what came of it.
  std::erase_if(addresses.addresses,
                [](const NodeAddress& each) { return each.port == 0 && !each.allowed; });
  send_(addresses);
}

void NetworkDesk::listen_at(NodeAddress& address) {
  try {
    UniqueFd socket = listen_on(address.address, 0);
    address.port = port_of(socket);
    LinkServer::Callbacks events;
    events.on_open = [](LinkServer::Id, const std::string&, const std::string&) {};
    events.on_message = [](LinkServer::Id, const std::string&) {};
    events.on_close = [](LinkServer::Id, const std::string&) {};
    events.on_refused = [](const std::string&, const std::string&) {};
    listeners_.push_back(
        std::make_unique<LinkServer>(loop_, std::move(socket),
                                     LinkServerOptions{.secret = plan_.secret,
                                                       .tls = plan_.options.tls,
                                                       .run_id = name_of(plan_.agent.self.id),
                                                       .limits = {},
                                                       .max_strangers = 64},
                                     std::move(events)));
  } catch (const Error&) {
    address.port = 0;
  }
}

void NetworkDesk::probe(const ProbeNodes& probes) {
  if (round_) loop_.cancel(round_->limit);
  round_ = std::make_unique<Round>();
  round_->number = probes.round;
  round_->targets = probes.targets;
  round_->clients.resize(probes.targets.size());
  for (std::size_t i = 0; i < probes.targets.size(); ++i) round_->undecided.insert(i);
  for (std::size_t i = 0; i < probes.targets.size(); ++i) begin(i, probes.targets[i]);
  round_->limit = loop_.after(kProbeLimit, [this] {
    const std::set<std::size_t> late = round_->undecided;
    for (const std::size_t number : late) decide(number, "no answer");
  });
  if (round_->undecided.empty()) finish_round();
}

void NetworkDesk::begin(std::size_t number, const ProbeTarget& target) {
  LinkClient::Callbacks events;
  // Answers come from the loop, and none of a round that is over: its clients are gone.
  events.on_open = [this, number](const std::string&, const std::string&) { decide(number, ""); };
  events.on_message = [](const std::string&) {};
  events.on_close = [this, number](const std::string& reason) { decide(number, reason); };
  LinkClientOptions options{.server = {target.at, target.port},
                            .secret = plan_.secret,
                            .tls = plan_.options.tls,
                            .run_id = name_of(target.id),
                            .connect_timeout = 2 * kProbeLimit,  // not before the round's
                            .limits = {},
                            .advises = false};
  round_->clients[number] = std::make_unique<LinkClient>(loop_, std::move(options), events);
}

void NetworkDesk::decide(std::size_t number, const std::string& failure) {
  if (round_->undecided.erase(number) == 0) return;
  if (!failure.empty()) {
    const ProbeTarget& target = round_->targets[number];
    round_->failures.push_back({.node = target.node, .address = target.address, .reason = failure});
  }
  round_->clients[number].reset();
  if (round_->undecided.empty()) finish_round();
}

void NetworkDesk::finish_round() {
  loop_.cancel(round_->limit);
  const auto done = std::move(round_);
  send_(Probed{done->number, done->failures});
}

}  // namespace lockstep
