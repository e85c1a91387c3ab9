#include "comm/recovery.h"

#include <algorithm>
#include <utility>

#include "comm/store_impl.h"
#include "comm/world_impl.h"
#include "core/tcp_probe.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Connecting takes milliseconds once all ranks are there.
constexpr milliseconds kConnectLimit{15000};
// Until the launcher says why a membership did not come about.
constexpr milliseconds kWordLimit{5000};

// A membership that loses another process is given up together with its store, perhaps before this
// process has found it; c10d's client would look for it until its time is over.
void await_store(const NewWorld& next, const LiveGroups& groups, Clock::time_point deadline) {
  constexpr milliseconds kLook{250};
  while (!wait_for_listener(next.master_addr, next.master_port, kLook)) {
    if (groups.revoked()) throw Aborted("the launcher forms another membership");
    if (Clock::now() > deadline) {
      throw Timeout(concat("the launcher's store at ", next.master_addr, ":", next.master_port,
                           " is not there"));
    }
  }
}

// The place of this process in a membership, and its store, which is there.
Meeting meeting_in(const NewWorld& next, const Meeting& before) {
  Meeting meeting = before;
  meeting.place.rank = next.rank;
  meeting.place.world_size = next.world_size;
  meeting.place.local_rank = next.local_rank;
  meeting.place.local_world_size = next.local_world_size;
  meeting.place.node_rank = next.node_rank;
  meeting.place.restart_count = next.restart_count;
  meeting.place.master_addr = next.master_addr;
  meeting.place.master_port = next.master_port;
  meeting.one_machine = next.local_world_size == next.world_size;
  meeting.store = connect_tcp_store({.host = next.master_addr,
                                     .port = next.master_port,
                                     .serve = false,
                                     .timeout = kConnectLimit},
                                    next.world_size, &meeting.store_port);
  return meeting;
}

[[noreturn]] void throw_stranded(const World::Impl& impl) {
  const std::string start = concat("rank ", impl.rank(), ": ranks were lost, and ");
  if (impl.agent->stop_requested()) {
    throw PeerLost(concat(start, "the launcher wants the program to stop"),
                   {.rank = impl.rank(), .peers = {}, .operation = "reform"});
  }
  if (const std::string problem = impl.agent->problem(); !problem.empty()) {
    throw PeerLost(concat(start, "the launcher is gone: ", problem),
                   {.rank = impl.rank(), .peers = {}, .operation = "reform"});
  }
  throw Timeout(concat(start, "the launcher did not announce another membership within ",
                       std::chrono::duration<double>(impl.options.rendezvous_timeout).count(),
                       " s"));
}

}  // namespace

// Nothing of the memberships before has keys under this number.
void World::Impl::follow(std::uint64_t membership) {
  epoch = static_cast<std::int64_t>(membership);
  connect_limit = kConnectLimit;
  group_count = 0;
}

void World::Impl::hear_revocations() {
  if (std::exchange(hears_revocations, true)) return;
  agent->on_revoke(
      [groups = groups](const RevokeWorld& revoked) { groups->revoke(revoked.epoch); });
}

void World::Impl::form_again() {
  const MeteredWait waiting(agent->meter().get(), "reform");
  const auto deadline = Clock::now() + options.rendezvous_timeout;
  while (true) {
    groups->leave();
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto next = agent->await_world(groups->epoch() + 1, std::max(left, milliseconds(0)));
    if (!next) throw_stranded(*this);
    groups->enter(next->epoch);
    try {
      follow(next->epoch);
      await_store(*next, *groups, deadline);
      meeting = meeting_in(*next, meeting);
      connect();
      if (!groups->revoked()) return;
    } catch (const std::exception&) {
      // The membership may have lost another process before it was complete.
      if (!groups->await_revocation(kWordLimit)) throw;
    }
  }
}

bool can_recover(World& world) {
  World::Impl& impl = world.impl();
  // A busy launcher may not have answered yet; what a run does for recovery must not depend on it.
  return impl.can_follow && impl.agent->await_welcome() && impl.agent->replaces_workers();
}

void commit_to_recovery(World& world, std::int64_t steps) {
  World::Impl& impl = world.impl();
  if (!impl.can_follow) return;
  impl.joins = false;
  impl.hear_revocations();
  impl.agent->report_recovers(impl.groups->epoch(), steps);
}

void end_recovery(World& world, std::int64_t steps) {
  World::Impl& impl = world.impl();
  if (!std::exchange(impl.can_follow, false) || !impl.hears_revocations) return;
  impl.agent->on_revoke(nullptr);
  impl.agent->report_recovers_no_more(impl.groups->epoch(), steps);
}

ProgressMeter* meter_of(World& world) {
  const AgentClient* agent = world.impl().agent.get();
  return agent != nullptr ? agent->meter().get() : nullptr;
}

void reject(World& world, const std::vector<int>& ranks, const std::string& reason) {
  world.impl().agent->reject(world.impl().groups->epoch(), ranks, reason);
}

bool all_groups_work(World& world) {
  return world.impl().groups->all_work();
}

bool await_revocation(World& world, milliseconds limit) {
  return world.impl().groups->await_revocation(limit);
}

void reform(World& world) {
  world.abort();
  world.impl().form_again();
}

}  // namespace lockstep
