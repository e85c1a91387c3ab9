// What node_shell.cpp does with an agent and its workers.
#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "lockstep/error.h"
#include "sim/takeover_world.h"

namespace lockstep::sim {

using namespace std::chrono_literals;

void TakeoverWorld::disconnected(Node& node, const std::string& reason) {
  node.link.reset();
  node.in_touch = false;
  with_agent(node, node.agent->on_disconnected(reason, queue_.now()));
}

void TakeoverWorld::with_agent(Node& node, Agent::Actions actions) {
  const Epoch epoch = node.membership.epoch;
  for (const AgentAction& action : actions) {
    if (std::get_if<Connect>(&action)) {
      connect(node);
    } else if (std::get_if<Disconnect>(&action)) {
      if (node.link) break_link(*node.link, false, true);
      node.link.reset();
    } else if (const auto* send = std::get_if<Send>(&action)) {
      to_coordinator(node, send->message);
    } else if (const auto* open = std::get_if<OpenStore>(&action)) {
      after(node, 5ms, [this, &node, opened = open->membership.epoch] {
        with_agent(node, node.agent->on_store_open(opened, 2000, queue_.now()));
      });
    } else if (const auto* start = std::get_if<StartWorkers>(&action)) {
      start_workers(node, *start);
    } else if (const auto* revoke = std::get_if<RevokeWorkers>(&action)) {
      for (const int local_rank : revoke->killed) {
        after(node, 5ms, [this, &node, local_rank] { end_worker(node, local_rank, 137, 9); });
      }
    } else if (const auto* signal = std::get_if<SignalWorkers>(&action)) {
      const int number = signal->signal;
      for (std::size_t i = 0; i < node.workers.size(); ++i) {
        after(node, random_.between(1ms, 200ms), [this, &node, i, number] {
          end_worker(node, static_cast<int>(i), 128 + number, number);
        });
      }
    } else if (std::get_if<EndLeftovers>(&action)) {
      after(node, 10ms, [this, &node] { with_agent(node, node.agent->on_all_gone(queue_.now())); });
    } else if (const auto* says = std::get_if<AgentSays>(&action)) {
      note(node, says->text);
    } else if (const auto* done = std::get_if<AgentDone>(&action)) {
      node.finish = done->finish;
      done->finish.code == 0 ? ++tally_.succeeded : ++tally_.failed;
      for (const Node::Worker& worker : node.workers) {
        if (worker.runs) throw std::runtime_error(node.id + " ends and leaves workers");
      }
    }
    if (!node.alive) return;
  }
  if (node.agent->epoch() < epoch) throw std::runtime_error(node.id + " goes back to an epoch");
  const std::uint64_t timer = ++node.agent_timer;
  const Time deadline = node.agent->next_deadline();
  if (deadline != Time::max()) {
    after(node, std::max<Time>(deadline - queue_.now(), 0s) + 10us, [this, &node, timer] {
      if (node.agent_timer != timer) return;
      with_agent(node, node.agent->on_time(queue_.now()));
    });
  }
  exit_if_done(node);
}

void TakeoverWorld::start_workers(Node& node, const StartWorkers& start) {
  node.membership = start.membership;
  const Epoch epoch = start.membership.epoch;
  note(node, concat("workers of epoch ", epoch, start.carries_over ? " go on" : " start"));
  for (std::size_t i = 0; i < node.workers.size(); ++i) {
    Node::Worker& worker = node.workers[i];
    const int place = start.membership.self.first_rank + static_cast<int>(i);
    if (!start.membership.is_in(place)) continue;
    const bool is_fresh =
        !start.carries_over || std::ranges::find(start.replaced, place) != start.replaced.end();
    if (is_fresh) {
      if (worker.runs) throw std::runtime_error(node.id + " starts a worker beside another");
      worker = {.runs = true, .started = epoch, .number = ++node.last_worker};
    } else if (worker.runs && worker.started < epoch) {
      ++tally_.lived_through;
    }
    after(node, random_.between(50ms, 500ms), [this, &node, i, number = worker.number] {
      speak_or_end(node, static_cast<int>(i), number);
    });
  }
}

// It says that it has the job's state; when the work is done, that it goes, and goes.
void TakeoverWorld::speak_or_end(Node& node, int local_rank, std::uint64_t number) {
  const auto is_same = [&node, local_rank, number] {
    const Node::Worker& worker = node.workers[static_cast<std::size_t>(local_rank)];
    return worker.runs && worker.number == number;
  };
  if (!is_same()) return;
  const Epoch epoch = node.membership.epoch;
  const RankRecovers recovers{
      .epoch = epoch, .rank = 0, .step = static_cast<std::int64_t>(queue_.now() / 1s)};
  if (terms_.in_place()) {
    with_agent(node, node.agent->on_worker_recovers(local_rank, recovers, queue_.now()));
  }
  const Time rest = std::max<Time>(work_end_ - queue_.now(), 1s) + random_.between(0ms, 100ms);
  after(node, rest, [this, &node, local_rank, epoch, is_same] {
    if (!is_same() || node.agent->epoch() != epoch) return;
    with_agent(node, node.agent->on_worker_leaving(local_rank, queue_.now()));
    if (is_same()) end_worker(node, local_rank, 0, 0);
  });
}

void TakeoverWorld::end_worker(Node& node, int local_rank, int code, int signal) {
  Node::Worker& worker = node.workers[static_cast<std::size_t>(local_rank)];
  if (!std::exchange(worker.runs, false)) return;
  with_agent(node, node.agent->on_worker_end({.epoch = worker.started,
                                              .local_rank = local_rank,
                                              .code = code,
                                              .details = "",
                                              .signal = signal,
                                              .progress = ""},
                                             queue_.now()));
}

}  // namespace lockstep::sim
