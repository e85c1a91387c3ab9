#include "launch/node_store.h"

#include "core/rank_list.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Importing torch takes a few seconds, on a cold network disk a minute: before this, waiting is
// nothing to speak of.
constexpr std::chrono::seconds kPatience{20};

}  // namespace

NodeStore::NodeStore(EventLoop& loop, const JobPlan& plan, Callbacks callbacks)
    : loop_(loop), plan_(plan), callbacks_(std::move(callbacks)) {}

NodeStore::~NodeStore() {
  close();
}

int NodeStore::open(const Membership& membership) {
  if (server_ && membership_.epoch == membership.epoch) return server_->port();
  // A new port as well where none was asked for: a worker of an old epoch that connects late, on a
  // node that was cut off, must not find the new one.
  close();
  // Where nodes have chosen a network, there and nowhere else.
  const bool is_shared = !plan_.one_node && !plan_.agent.terms.local_store;
  UniqueFd listener =
      listen_on(is_shared ? membership.self.address : plan_.store_address, plan_.store_port);
  // Rank 0 will listen there by itself, so the port cannot be held for it.
  if (!plan_.share_store && plan_.options.rdzv_backend != "static") return port_of(listener);
  server_ = std::make_unique<StoreServer>(
      StoreServerOptions{.listener = std::move(listener), .log = callbacks_.log});
  server_->new_keyspace(membership.epoch);
  std::vector<std::string> addresses;
  for (const NodePlace& node : membership.nodes) {
    addresses.push_back(node.address);
    if (!node.seen_at.empty()) addresses.push_back(node.seen_at);
  }
  // A local store's clients on other nodes come over their links.
  if (!plan_.agent.terms.local_store) server_->allow(addresses);
  membership_ = membership;
  last_said_.clear();
  watch_ = loop_.after(kPatience, [this] { watch_arrivals(); });
  return server_->port();
}

UniqueFd NodeStore::connect(Epoch epoch, const std::string& address) {
  if (!server_ || membership_.epoch != epoch) return {};
  return server_->connect(address);
}

void NodeStore::close() {
  loop_.cancel(watch_);
  server_.reset();
}

void NodeStore::watch_arrivals() {
  watch_ = loop_.after(kPatience, [this] { watch_arrivals(); });
  const StoreStatus status = server_->status();
  const auto missing = ranks_not_arrived(status, membership_.world_size());
  if (!missing || missing->empty()) return;
  std::vector<int> places;
  for (const int rank : *missing) {
    if (const auto place = membership_.place_of(rank)) places.push_back(*place);
  }
  const auto now = std::chrono::steady_clock::now();
  for (const StoreClientStatus& client : status.clients) {
    if (client.awaited_keys.empty() || now - client.last_request < kPatience) continue;
    const std::string text = concat(
        list_ranks(places), " of ", membership_.places, missing->size() == 1 ? " has" : " have",
        " not joined the process group yet; others wait for it (process ", client.pid, " on ",
        client.address, " for key ", client.awaited_keys.front(), ")");
    if (text != last_said_) callbacks_.say(text);
    last_said_ = text;
    return;
  }
}

}  // namespace lockstep
