#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/arrival.h"
#include "comm/group_factory.h"
#include "comm/live_groups.h"
#include "comm/rendezvous.h"
#include "control/agent_client.h"
#include "lockstep/error.h"
#include "lockstep/world.h"

namespace lockstep {

inline c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix,
                                                const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

/// What a World is made of: world.cpp makes it, recovery.cpp makes it again in place.
class World::Impl {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  Meeting meeting;
  std::int64_t epoch = 0;
  c10::Device device{c10::DeviceType::CPU};
  InitOptions options;
  std::string backend;

  std::unique_ptr<AgentClient> agent;  // null: nobody listens
  bool can_follow = false;  // into another membership: the world is one that the launcher described
  int slot = 0;             // the number that this process keeps, whatever ranks are left out
  bool joins = false;       // this process replaces another and has no state yet
  bool hears_revocations = false;
  /// Of connecting once all are there, in memberships that follow others: the launcher's word that
  /// one of them has died does not reach a backend that connects.
  std::optional<std::chrono::milliseconds> connect_limit;
  std::shared_ptr<LiveGroups> groups;

  StorePtr group_store;  // under which Python's process groups have their keys
  StorePtr own_store;
  std::optional<Store> user_store;
  std::shared_ptr<const Peers> peers;
  ProcessGroup world_group;
  int group_count = 0;
  bool destroyed = false;

  int rank() const { return meeting.place.rank; }
  int world_size() const { return meeting.place.world_size; }

  GroupSpec spec(const std::string& name, std::vector<int> ranks, const StorePtr& parent) const {
    const auto position = std::find(ranks.begin(), ranks.end(), rank());
    return {.name = name,
            .backend = backend,
            .rank = static_cast<int>(position - ranks.begin()),
            .global_ranks = std::move(ranks),
            .timeout = options.timeout,
            .rendezvous_timeout = connect_limit.value_or(options.rendezvous_timeout),
            .one_machine = meeting.one_machine,
            .store_port = meeting.store_port,
            .backend_store = prefixed(name + "/", parent),
            .own_store = prefixed(name, own_store),
            .peers = peers,
            .meter = agent ? agent->meter() : nullptr};
  }

  void meet_in_epoch(const Environment& environment);
  void connect();
  void await_everyone(const Arrival& arrival) const;
  void await_marks(const std::string& mark);
  void say_goodbye();
  // recovery.cpp
  void hear_revocations();
  void follow(std::uint64_t membership);
  void form_again();
  void check_alive(const char* operation) const {
    if (destroyed) throw Aborted(concat(operation, ": this process has left the world"));
  }
};

}  // namespace lockstep
