// What a simulated machine does with processes.
#include <algorithm>
#include <csignal>

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

void Machine::start_workers(const StartWorkers& start) {
  shared_.checks.workers_started(
      {.id = id_,
       .link_is_open = link_ && shared_.network->open_at_coordinator(*link_),
       .processes = static_cast<int>(processes_.size())},
      start);
  const NodeScenario& scenario = shared_.scenario.nodes[static_cast<std::size_t>(index_)];
  for (int rank = 0; rank < scenario.workers; ++rank) start_worker(start.membership.epoch, rank);
  count_processes();
}

void Machine::start_worker(Epoch epoch, int local_rank) {
  const Scenario& scenario = shared_.scenario;
  Random& random = shared_.random;
  Process process{.number = next_process_++,
                  .epoch = epoch,
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
  shared_.queue.after(runs, [this, number = process.number, code] { end_process(number, code); });
  processes_.push_back(process);
}

void Machine::signal_workers(int number) {
  Random& random = shared_.random;
  shared_.trace.note(shared_.queue.now(), id_, "signals its workers", concat(number));
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
void Machine::end_process(int number, int code) {
  const auto found = std::ranges::find(processes_, number, &Process::number);
  if (found == processes_.end() || found->stuck) return;
  const Process process = *found;
  processes_.erase(found);
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
  if (code == 0 && !process.signalled) shared_.checks.worker_succeeded(id_, process.epoch);
  const WorkerEnd end{.epoch = process.epoch,
                      .local_rank = process.local_rank,
                      .code = code,
                      .details = code == 0 ? "" : "{}"};
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
    processes_.clear();
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
