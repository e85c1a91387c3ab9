// What a simulated machine does with processes.
#include <algorithm>
#include <csignal>
#include <set>

#include "lockstep/error.h"
#include "sim/machine.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

}  // namespace

void Machine::open_store(const Membership& membership) {
  Random& random = shared_.random;
  const Time delay = random.percent(20) ? random.between(1s, 8s) : random.between(100us, 20ms);
  const bool broken = random.percent(shared_.scenario.broken_percent);
  const int port = random.between(1024, 65535);
  later(delay, [this, epoch = membership.epoch, broken, port] {
    if (finish_) return;
    if (broken) {
      shared_.checks.goes_by_itself(id_);
      return report("store cannot be opened", [&](Agent& agent) {
        return agent.on_broken("the store's port is taken", local_now());
      });
    }
    shared_.checks.store_opened(id_, epoch, port);
    report("store is open",
           [&](Agent& agent) { return agent.on_store_open(epoch, port, local_now()); });
  });
}

// Others have had the job's state for a while, and it is neither the coordinator's nor the store's.
bool Machine::is_dispensable() const {
  if (index_ == 0 || group_rank_ == 0 || processes_.empty()) return false;
  std::set<int> workers;
  for (const Process& process : processes_) workers.insert(worker_id(process.number));
  return shared_.training.is_survivable(workers);
}

void Machine::start_workers(const StartWorkers& start) {
  group_rank_ = start.membership.group_rank;
  const NodeScenario& scenario = shared_.scenario.nodes[static_cast<std::size_t>(index_)];
  const int first = first_place_ = start.membership.self.first_rank;
  std::vector<int> fresh;
  int beside = 0;
  for (int local_rank = 0; local_rank < scenario.workers; ++local_rank) {
    const bool is_fresh =
        !start.carries_over ||
        std::ranges::find(start.replaced, first + local_rank) != start.replaced.end();
    if (is_fresh) fresh.push_back(local_rank);
  }
  // Whoever lives on is none of those that are started; what dead workers left behind may be there.
  for (const Process& process : processes_) {
    const bool lives_on =
        start.carries_over && !start.begins &&
        (!process.worker || (start.membership.is_in(first + process.local_rank) &&
                             std::ranges::find(fresh, process.local_rank) == fresh.end()));
    if (!lives_on) ++beside;
  }
  shared_.checks.workers_started(
      {.id = id_,
       .link_is_open = link_ && shared_.network->open_at_coordinator(*link_),
       .processes = beside},
      start);
  if (start.carries_over) {
    for (Process& process : processes_) {
      if (process.worker) continue_worker(start, process);
    }
  }
  for (const int local_rank : fresh) start_worker(start, local_rank);
  count_processes();
}

Machine::Process* Machine::find(int number) {
  const auto found = std::ranges::find(processes_, number, &Process::number);
  return found == processes_.end() ? nullptr : &*found;
}

void Machine::arrive(int number, const StartWorkers& start) {
  const Process* process = find(number);
  const Membership& membership = start.membership;
  const Epoch epoch = membership.epoch;
  if (process == nullptr || process->revoked > epoch) return;
  const int place = membership.self.first_rank + process->local_rank;
  shared_.training.arrive({.worker = worker_id(number),
                           .world = {shared_.checks.life(), epoch},
                           .rank = membership.rank_of(place),
                           .world_size = membership.world_size(),
                           .slots = membership.places,
                           .joins = process->epoch == epoch && start.carries_over});
}

// A worker that lives on hears of its new world.
void Machine::continue_worker(const StartWorkers& start, Process& process) {
  if (process.signalled) return;
  shared_.training.check_carried_over(worker_id(process.number));
  shared_.queue.after(shared_.random.between(100us, 30ms), [this, number = process.number, start] {
    Process* lives = find(number);
    if (lives == nullptr || lives->world >= start.membership.epoch) return;
    lives->world = start.membership.epoch;
    if (lives->revoked > lives->world) return;
    shared_.training.revoke(worker_id(number));  // where the revocation comes after it
    arrive(number, start);
  });
}

void Machine::revoke_workers(const RevokeWorkers& revoke) {
  Random& random = shared_.random;
  for (Process& process : processes_) {
    if (!process.worker) continue;
    const auto is = [&](const std::vector<int>& ranks) {
      return std::ranges::find(ranks, process.local_rank) != ranks.end();
    };
    const int number = process.number;
    if (is(revoke.killed)) {
      process.killed = true;
      shared_.queue.after(random.between(1ms, 50ms),
                          [this, number] { end_process(number, 128 + SIGKILL); });
    } else if (is(revoke.survivors)) {
      shared_.queue.after(random.between(100us, 30ms), [this, number, epoch = revoke.epoch] {
        Process* lives = find(number);
        if (lives == nullptr || lives->revoked >= epoch || lives->world >= epoch) return;
        lives->revoked = epoch;
        shared_.training.revoke(worker_id(number));
      });
    }
  }
}

void Machine::doom_left_out(const Membership& membership) {
  if (!alive()) return;
  for (const Process& process : processes_) {
    if (!process.worker || membership.is_in(first_place_ + process.local_rank)) continue;
    shared_.training.doom(worker_id(process.number));
  }
}

bool Machine::kill_worker() {
  if (!alive() || processes_.empty()) return false;
  const Process& process = processes_[static_cast<std::size_t>(
      shared_.random.between(0, static_cast<int>(processes_.size()) - 1))];
  if (!process.worker) return false;
  const Time now = shared_.queue.now();
  if (shared_.scenario.must_survive) {
    const auto last = kills_.find(process.local_rank);
    const bool soon = last != kills_.end() && now - last->second < 60s;
    if (soon && shared_.scenario.terms.min_world != 1) return false;
    if (!shared_.training.is_survivable({worker_id(process.number)})) return false;
  }
  kills_[process.local_rank] = now;
  shared_.trace.note(now, id_, "worker is killed", concat("local rank ", process.local_rank));
  end_process(process.number, 128 + SIGKILL);
  return true;
}

// Messages of a worker to its agent, which come in the order in which they are sent.
void Machine::worker_recovers(int worker, const RankRecovers& recovers) {
  const Process* process = find(worker % kMostProcesses);
  if (process == nullptr || finish_) return;
  report("worker recovers", [&, local_rank = process->local_rank](Agent& agent) {
    return agent.on_worker_recovers(local_rank, recovers, local_now());
  });
  fill_spares();
}

void Machine::worker_leaves(int worker) {
  const Process* process = find(worker % kMostProcesses);
  if (process == nullptr || finish_) return;
  report("worker leaves", [&, local_rank = process->local_rank](Agent& agent) {
    return agent.on_worker_leaving(local_rank, local_now());
  });
}

void Machine::worker_has_ended(int worker) {
  end_process(worker % kMostProcesses, 0);
}

void Machine::forget_processes() {
  for (const Process& process : processes_) shared_.training.die(worker_id(process.number));
  processes_.clear();
  lose_spares();
}

void Machine::start_worker(const StartWorkers& start, int local_rank) {
  const Scenario& scenario = shared_.scenario;
  Random& random = shared_.random;
  Process process{.number = next_process_++,
                  .epoch = start.membership.epoch,
                  .local_rank = local_rank,
                  .worker = true,
                  .ignores_term = random.percent(scenario.ignoring_percent),
                  .stuck = false,
                  .killed = false,
                  .leaves_child = random.percent(scenario.grandchild_percent),
                  .signalled = std::nullopt};
  int code = 0;
  Time runs = scenario.work + random.between(Time(0), scenario.uneven);
  if (random.percent(scenario.failing_percent)) {
    runs = random.between(1ms, scenario.work);
    code = random.percent(scenario.resume_percent) ? 75 : random.percent(50) ? 1 : 139;
  }
  const int number = process.number;
  processes_.push_back(process);
  if (start.carries_over && random.percent(scenario.unstartable_percent)) {
    shared_.queue.after(random.between(10us, 5ms),
                        [this, number] { end_process(number, 126, /*was_started=*/false); });
    return;
  }
  if (code != 0 || !scenario.trains) {
    shared_.queue.after(runs, [this, number, code] { end_process(number, code); });
  }
  if (!scenario.trains) return;
  const Time loads = time_to_load(/*joins=*/start.carries_over);
  shared_.queue.after(loads, [this, number, start] { arrive(number, start); });
}

// A spare has loaded all and may be there before the survivors have heard of the new world.
Time Machine::time_to_load(bool joins) {
  if (!joins || spares_ == 0) return shared_.random.between(10ms, 3s);
  --spares_;
  return shared_.random.between(10us, 20ms);
}

// When all of this node go on; some die, and others come later.
void Machine::fill_spares() {
  for (int i = 0; i < shared_.scenario.spares; ++i) {
    const bool dies = shared_.random.percent(20);
    later(shared_.random.between(500ms, 4s), [this, dies, life = spares_life_] {
      if (life != spares_life_ || finish_ || spares_ >= shared_.scenario.spares) return;
      ++spares_;
      if (!dies) return;
      later(shared_.random.between(1ms, 10s), [this, life] {
        if (life == spares_life_ && spares_ > 0) --spares_;
      });
    });
  }
}

void Machine::lose_spares() {
  spares_ = 0;
  ++spares_life_;
}

void Machine::signal_workers(int number) {
  Random& random = shared_.random;
  shared_.trace.note(shared_.queue.now(), id_, "signals its workers", concat(number));
  lose_spares();
  for (Process& process : processes_) {
    if (!process.worker || process.killed) continue;
    if (!process.signalled) process.signalled = local_now();
    const int code = number == SIGTERM && random.percent(20) ? 0 : 128 + number;
    const auto end = [this, which = process.number, code] { end_process(which, code); };
    if (number != SIGKILL) {
      if (!process.ignores_term) shared_.queue.after(random.between(1ms, 2s), end);
      continue;
    }
    process.killed = true;
    process.stuck = random.percent(shared_.scenario.stuck_percent);
    if (!process.stuck) {
      shared_.queue.after(random.between(1ms, 20ms), end);
    } else {
      later(5s, [this] {
        if (finish_) return;
        shared_.checks.goes_by_itself(id_);
        report("stuck", [&](Agent& agent) {
          return agent.on_stuck("a worker cannot be killed", local_now());
        });
      });
    }
  }
  count_processes();
}

void Machine::infect(Epoch epoch) {
  Random& random = shared_.random;
  for (const Process& process : processes_) {
    if (!process.worker || process.epoch != epoch || random.percent(30)) continue;
    shared_.queue.after(random.between(1ms, 300ms),
                        [this, number = process.number] { end_process(number, 1); });
  }
}

// By itself or by a signal; the first of them counts.
void Machine::end_process(int number, int code, bool was_started) {
  const auto found = std::ranges::find(processes_, number, &Process::number);
  if (found == processes_.end() || found->stuck) return;
  const Process process = *found;
  processes_.erase(found);
  shared_.training.die(worker_id(number));
  if (process.leaves_child) {
    Process child;
    child.number = next_process_++;
    child.epoch = process.epoch;
    child.worker = false;
    processes_.push_back(child);
  }
  if (!alive()) return;
  count_processes();
  shared_.trace.note(
      shared_.queue.now(), id_, "worker ends",
      concat("local rank ", process.local_rank, " of epoch ", process.epoch, ", code ", code));
  if (code != 0 && !process.signalled) shared_.worker_failed(process.epoch);
  if (code == 0 && !process.signalled) {
    shared_.checks.worker_succeeded(id_, shared_.scenario.trains ? agent_->epoch() : process.epoch);
  }
  const WorkerEnd end{.epoch = process.epoch,
                      .local_rank = process.local_rank,
                      .code = code,
                      .details = code == 0 ? "" : "{}",
                      .signal = code > 128 ? code - 128 : 0,
                      .progress = "",
                      .started = was_started};
  later(shared_.random.between(10us, 5ms), [this, end] {
    if (finish_) return;
    report("learns of it", [&](Agent& agent) { return agent.on_worker_end(end, local_now()); });
  });
}

// What is waited for gently ends by itself, sometime; the ends of workers come before the answer.
void Machine::end_leftovers(bool gently) {
  const Time delay =
      gently ? shared_.random.between(1ms, 10s) : shared_.random.between(10us, 100ms);
  later(delay, [this, request = ++leftovers_request_] {
    if (finish_ || request != leftovers_request_) return;
    if (std::ranges::any_of(processes_, &Process::stuck)) return;
    std::vector<int> workers;
    for (const Process& process : processes_) {
      if (process.worker) workers.push_back(process.number);
    }
    for (const int number : workers) end_process(number, 128 + SIGKILL);
    forget_processes();
    count_processes();
    later(10ms, [this, request] {
      if (finish_ || request != leftovers_request_) return;
      report("nobody is left", [&](Agent& agent) { return agent.on_all_gone(local_now()); });
    });
  });
}

void Machine::check() {
  if (!alive() || finish_) return;
  const Time now = local_now();
  for (const Process& process : processes_) {
    if (!process.worker) continue;
    std::optional<Time> since;
    if (process.signalled) since = now - *process.signalled;
    shared_.checks.worker_runs(
        id_, {.silence = now - heard_, .since_signal = since, .stuck = process.stuck});
  }
}

}  // namespace lockstep::sim
