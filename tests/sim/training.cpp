#include "sim/training.h"

#include <algorithm>

#include "lockstep/error.h"
#include "sim/checks.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

}  // namespace

bool Training::is_in(int worker, WorldKey world) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.world == world;
}

bool Training::has_state(int worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.has_state;
}

void Training::check_carried_over(int worker) const {
  require(has_state(worker), "worker ", worker, " is carried over without the job's state");
}

// What a worker does next, unless it is gone or its world is by then.
void Training::soon(int worker, WorldKey key, Time low, Time high, std::function<void()> action) {
  queue_.after(random_.between(low, high), [this, worker, key, action = std::move(action)] {
    if (is_in(worker, key)) action();
  });
}

void Training::arrive(const Arrival& arrival) {
  Worker& worker = workers_[arrival.worker];
  if (worker.leaving) return;  // nothing holds it up any more
  worker.world = arrival.world;
  worker.rank = arrival.rank;
  worker.joins = arrival.joins;
  World& world = worlds_[arrival.world];
  require(
      world.members.empty() || (world.size == arrival.world_size && world.slots == arrival.slots),
      "rank ", arrival.rank, " of epoch ", arrival.world.second, " comes to a world of ",
      world.size, " and believes in ", arrival.world_size);
  world.size = arrival.world_size;
  world.slots = arrival.slots;
  require(!world.has_met, "rank ", arrival.rank, " comes to a world that has met already");
  const auto [place, is_new] = world.members.try_emplace(arrival.rank, arrival.worker);
  require(is_new, "two workers come as rank ", arrival.rank, " of epoch ", arrival.world.second);
  if (static_cast<int>(world.members.size()) == world.size) meet(arrival.world);
}

void Training::meet(WorldKey key) {
  World& world = worlds_.at(key);
  world.has_met = true;
  bool any_joins = false;
  int newest = -1;
  int oldest = length_.steps + 1;
  for (const auto& [rank, number] : world.members) {
    const Worker& worker = workers_.at(number);
    any_joins = any_joins || worker.joins || worker.has_state;
    if (!worker.has_state) continue;
    newest = std::max(newest, worker.committed);
    oldest = std::min(oldest, worker.committed);
  }
  if (!any_joins) {  // all were started anew, as from a snapshot
    ++lineage_;
    highest_ = 0;
    highest_is_old_ = false;
    newest = 0;
    ends_ = false;
  } else {
    ++recoveries_;
    // Who was cut off with its node is as good as dead, and will be.
    for (auto& [number, worker] : workers_) {
      worker.is_orphan = worker.is_orphan || (worker.has_state && worker.world != key);
    }
    find_highest();
    require(newest >= 0, "epoch ", key.second, " goes on although nobody has the job's state");
    require(newest - oldest <= 1, "survivors are ", newest - oldest, " steps apart");
    require(newest == highest_, "step ", highest_, " was committed, and epoch ", key.second,
            " goes on after step ", newest);
  }
  // Who begins anew has data to read first, and may be seconds behind the others.
  for (const auto& [rank, number] : world.members) {
    const bool is_late = !any_joins && random_.percent(25);
    soon(number, key, 100us, is_late ? length_.latest_start : Time(300ms),
         [this, number = number, key, newest] { take_state(number, key, newest); });
  }
}

void Training::take_state(int number, WorldKey key, int step) {
  Worker& worker = workers_.at(number);
  if (!worker.has_state) worker.state_since = queue_.now();
  worker.has_state = true;
  worker.lineage = lineage_;
  worker.committed = step;
  callbacks_.recovers(number,
                      {.epoch = key.second, .rank = worker.rank, .step = step, .able = true});
  if (step == length_.steps) return reach_end(number, key);
  soon(number, key, length_.step_time / 2, length_.step_time,
       [this, number, key] { contribute(number, key); });
}

void Training::contribute(int number, WorldKey key) {
  World& world = worlds_.at(key);
  const Worker& worker = workers_.at(number);
  const int step = worker.committed;
  auto& slots = world.contributions[step];
  // With fewer workers than slots some have several.
  for (int slot = worker.rank; slot < world.slots; slot += world.size) {
    require(slots.insert(slot).second, "samples of slot ", slot, " are given twice in step ", step);
  }
  if (static_cast<int>(slots.size()) < world.slots) return;
  for (const auto& [rank, each] : world.members) {
    soon(each, key, 10us, 20ms, [this, each = each, key, step] { commit(each, key, step); });
  }
}

void Training::commit(int number, WorldKey key, int step) {
  Worker& worker = workers_.at(number);
  require(worker.committed == step, "rank ", worker.rank, " commits step ", step, " after step ",
          worker.committed);
  if (highest_is_old_) find_highest();
  worker.committed = step + 1;
  if (worker.lineage == lineage_ && !worker.is_orphan) {
    highest_ = std::max(highest_, worker.committed);
  }
  if (worker.committed == length_.steps) return reach_end(number, key);
  soon(number, key, length_.step_time / 2, length_.step_time,
       [this, number, key] { contribute(number, key); });
}

// Nobody leaves before all have committed the last step.
void Training::reach_end(int number, WorldKey key) {
  World& world = worlds_.at(key);
  world.at_end.insert(workers_.at(number).rank);
  callbacks_.at_end(number);
  if (static_cast<int>(world.at_end.size()) < world.size) return;
  ends_ = true;
  // Who came to the end and died there is not waited for: the others have all that they need to
  // end.
  const bool one_is_dead = std::ranges::any_of(
      world.members, [&](const auto& member) { return !workers_.contains(member.second); });
  // One that is left out may be tried again at this very moment.
  if (one_is_dead || world.size < world.slots) callbacks_.ends_without_one();
  for (const auto& [rank, each] : world.members) {
    soon(each, key, 10us, 50ms, [this, each = each, key] {
      workers_.at(each).leaving = true;
      callbacks_.leaving(each);
      queue_.after(random_.between(1ms, 200ms), [this, each] {
        if (workers_.contains(each)) callbacks_.ended(each);
      });
    });
  }
}

void Training::revoke(int number) {
  const auto found = workers_.find(number);
  if (found == workers_.end() || found->second.leaving) return;
  const auto world = worlds_.find(found->second.world);
  if (world != worlds_.end() && !world->second.has_met) {
    world->second.members.erase(found->second.rank);
  }
  // All have come to the end, and some may have gone.
  if (ends_ && found->second.has_state) callbacks_.cut_short_at_end();
  found->second.world = {0, 0};
}

void Training::die(int number) {
  if (!workers_.contains(number)) return;
  revoke(number);
  workers_.erase(number);
  highest_is_old_ = true;
}

void Training::orphan(int number) {
  const auto found = workers_.find(number);
  if (found == workers_.end()) return;
  found->second.is_orphan = true;
  highest_is_old_ = true;
}

// A step that only the dead have committed is made again, with the same result.
void Training::find_highest() {
  highest_is_old_ = false;
  highest_ = 0;
  for (const auto& [number, worker] : workers_) {
    if (worker.has_state && worker.lineage == lineage_ && !worker.is_orphan) {
      highest_ = std::max(highest_, worker.committed);
    }
  }
}

bool Training::is_survivable(const std::set<int>& numbers) const {
  constexpr Time kKnown = 3s;
  const bool any = std::ranges::any_of(numbers, [&](int each) { return workers_.contains(each); });
  if (!any || ends_) return false;
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    return !numbers.contains(entry.first) && entry.second.has_state && !entry.second.is_orphan &&
           !doomed_.contains(entry.first) && entry.second.lineage == lineage_ &&
           entry.second.state_since + kKnown < queue_.now();
  });
}

}  // namespace lockstep::sim
