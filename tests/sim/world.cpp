#include "sim/world.h"

#include <algorithm>
#include <csignal>
#include <deque>
#include <exception>
#include <map>

#include "lockstep/error.h"
#include "sim/machine.h"
#include "sim/scenario.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;
using Way = Network::Way;

// At one moment of virtual time; more means that somebody asks for the same thing for ever.
constexpr int kMostAtOnce = 1000;

/// A job's nodes, the network between them, and what goes wrong.
class World final : public NetworkUsers {
 public:
  World(const Scenario& scenario, Trace::Lines lines)
      : scenario_(scenario),
        shared_{.scenario = scenario,
                .queue = {},
                .random = Random(scenario.seed),
                .trace = Trace(lines),
                .checks = Checks(scenario)},
        network_(shared_.queue, shared_.random, *this, scenario.nodes.size()) {
    shared_.network = &network_;
    shared_.worker_failed = [this](Epoch epoch) {
      // Workers that train wait for the agent's word.
      if (!scenario_.contagious || scenario_.trains) return;
      for (Machine& machine : machines_) machine.infect(epoch);
    };
    shared_.training.set_length({.steps = scenario.steps,
                                 .step_time = scenario.work / scenario.steps,
                                 .latest_start = scenario.latest_start});
    shared_.is_reached = [this](const ProbeTarget& target) {
      const std::size_t index = std::stoul(target.id.substr(1));  // "n3.2"
      return machines_[index].is_reached_at(target);
    };
    shared_.re_formed = [this](const Membership& membership) {
      for (Machine& machine : machines_) machine.doom_left_out(membership);
    };
    const auto machine_of = [this](int worker) -> Machine& {
      return machines_[static_cast<std::size_t>(worker / kMostProcesses)];
    };
    shared_.training.set_callbacks(
        {.recovers =
             [=](int worker, const RankRecovers& recovers) {
               machine_of(worker).worker_recovers(worker, recovers);
             },
         .leaving = [=](int worker) { machine_of(worker).worker_leaves(worker); },
         .ended = [=](int worker) { machine_of(worker).worker_has_ended(worker); },
         .at_end = [=, this](int worker) { threaten_end(machine_of(worker)); },
         .ends_without_one = [this] { shared_.checks.ends_without_one(); },
         .cut_short_at_end = [this] { shared_.checks.ends_without_one(); }});
    for (std::size_t i = 0; i < scenario.nodes.size(); ++i) {
      machines_.emplace_back(shared_, static_cast<int>(i));
    }
  }

  void run();
  const Trace& trace() const { return shared_.trace; }
  Time now() const { return shared_.queue.now(); }
  const std::vector<Traffic>& traffic() const { return network_.traffic(); }
  std::uint64_t visits() const { return shared_.visits; }
  int held_epochs() const { return shared_.held_epochs; }
  Tally tally() const {
    Tally tally = shared_.checks.tally();
    tally.recoveries = shared_.training.recoveries();
    return tally;
  }

  bool coordinator_listens() const override { return machines_[0].listens(); }
  bool awaits_connection(int node, std::uint64_t attempt) const override {
    return machines_[static_cast<std::size_t>(node)].awaits_connection(attempt);
  }
  void connection_breaks(int node, bool both_learn) override {
    shared_.checks.connection_breaks(machine(node).id(), both_learn);
  }
  void connected(int node, LinkId link) override { machine(node).connected(link); }
  void connect_failed(int node, const std::string& reason) override {
    machine(node).connection_lost(reason);
  }
  void arrived_at_node(int node, const std::string& text) override { machine(node).arrived(text); }
  void lost_at_node(int node, const std::string& reason) override {
    machine(node).connection_lost(reason);
  }
  void arrived_at_coordinator(LinkId link, int, const std::string& text) override {
    machines_[0].arrived_at_coordinator(link, text);
  }
  void lost_at_coordinator(LinkId link, const std::string& reason) override {
    machines_[0].lost_at_coordinator(link, reason);
  }

 private:
  Machine& machine(int node) { return machines_[static_cast<std::size_t>(node)]; }
  void note(int node, const char* fault) {
    shared_.trace.note(shared_.queue.now(), "fault", fault, concat("n", node));
  }
  void schedule_fault();
  void schedule_warning(Time when);
  void cause_fault();
  void cause_survivable_fault(int node);
  void threaten_end(Machine& machine);
  void partition(int node);
  void crash(int node);
  void send_signals(int node);
  void request_end(int number);
  void go_and_come_back(int node, const PlannedFault& fault);
  bool anyone_left() const;
  std::string who_is_left() const;

  const Scenario& scenario_;
  Shared shared_;
  Network network_;
  std::deque<Machine> machines_;
  std::map<int, Time> last_break_;  // by node
  int starts_ahead_ = 0;
  int events_at_once_ = 0;
};

void World::run() {
  for (std::size_t i = 0; i < scenario_.nodes.size(); ++i) {
    const NodeScenario& node = scenario_.nodes[i];
    if (node.never_comes) continue;
    ++starts_ahead_;
    shared_.queue.at(node.start, [this, i] {
      --starts_ahead_;
      machines_[i].start_process();
    });
  }
  shared_.queue.at(scenario_.faults_end, [this] {
    shared_.faults_over = true;
    network_.heal_all();
  });
  if (scenario_.fault_gap != Time(0)) schedule_fault();
  for (const PlannedFault& fault : scenario_.plan) {
    for (int node = fault.first; node < fault.first + fault.count; ++node) {
      ++starts_ahead_;
      shared_.queue.at(fault.when + shared_.random.between(Time(0), 50ms),
                       [this, node, &fault] { go_and_come_back(node, fault); });
    }
  }
  if (scenario_.warning) schedule_warning(*scenario_.warning);
  network_.harm_messages(scenario_.losing_percent, scenario_.repeating_percent);
  while (anyone_left() && !shared_.queue.empty()) {
    const Time before = shared_.queue.now();
    shared_.queue.run_next();
    events_at_once_ = shared_.queue.now() == before ? events_at_once_ + 1 : 0;
    if (events_at_once_ > kMostAtOnce) throw Violation("time stands still");
    if (shared_.queue.now() > scenario_.end_limit) {
      shared_.checks.time_limit_passed(who_is_left());
    }
  }
}

bool World::anyone_left() const {
  return starts_ahead_ > 0 || shared_.launchers > 0;
}

std::string World::who_is_left() const {
  std::string names;
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    if (machines_[i].alive()) names += concat(names.empty() ? "n" : ", n", i);
  }
  return names;
}

void World::schedule_fault() {
  shared_.queue.after(shared_.random.between(1ms, 2 * scenario_.fault_gap), [this] {
    if (shared_.faults_over) return;
    cause_fault();
    schedule_fault();
  });
}

// Every node hears of it by itself, and some do not know how long they have.
void World::schedule_warning(Time when) {
  for (Machine& each : machines_) {
    const bool knows = shared_.random.percent(50);
    shared_.queue.at(when + shared_.random.between(1ms, 2s), [&each, knows] {
      each.warn(knows ? std::optional<Time>(60s) : std::nullopt);
    });
  }
}

void World::cause_fault() {
  Random& random = shared_.random;
  const int node = random.between(0, static_cast<int>(machines_.size()) - 1);
  if (scenario_.must_survive) return cause_survivable_fault(node);
  if (scenario_.trains && random.percent(70)) {
    machine(node).kill_worker();
    return;
  }
  const int kind = random.between(1, 100);
  // It takes the coordinator with it.
  if (node == 0 && random.percent(scenario_.keeps_log ? 30 : 60)) return;
  if (kind <= (node == 0 && scenario_.keeps_log ? 40 : 10)) return crash(node);
  if (kind <= 12) return send_signals(node);
  if (node == 0) return;  // its connection does not leave the process
  if (kind <= 40) {
    note(node, "breaks the connection of");
    return network_.break_connection(node, true, true);
  }
  if (kind <= 55) {
    const bool node_learns = random.percent(50);
    note(node, "breaks half the connection of");
    return network_.break_connection(node, node_learns, !node_learns);
  }
  if (kind <= 75) return partition(node);
  note(node, "repeats messages of");
  network_.repeat_something(node, random.percent(50) ? Way::up : Way::down);
}

void World::cause_survivable_fault(int node) {
  const bool shrinks = scenario_.terms.min_world == 1;
  if (shrinks && shared_.random.percent(10) && machine(node).is_dispensable()) return crash(node);
  // A connection that breaks is made again before the node counts as lost.
  Time& broken = last_break_[node];
  if (node == 0 || shared_.random.percent(70) || shared_.queue.now() - broken < 20s) {
    machine(node).kill_worker();
    return;
  }
  broken = shared_.queue.now();
  note(node, "breaks the connection of");
  network_.break_connection(node, true, true);
  // What is said about a loss meanwhile has to be said again.
  const int other = shared_.random.between(0, static_cast<int>(machines_.size()) - 1);
  shared_.queue.after(shared_.random.between(1ms, 400ms),
                      [this, other] { machine(other).kill_worker(); });
}

// The end is short, and what can go wrong there is not like anything else.
void World::threaten_end(Machine& machine) {
  Random& random = shared_.random;
  if (scenario_.fault_gap == Time(0) || shared_.faults_over || !random.percent(30)) return;
  const Time latest = random.percent(60) ? 50ms : 250ms;  // while they go, or when they are gone
  shared_.queue.after(random.between(10us, latest), [&machine] { machine.kill_worker(); });
}

void World::partition(int node) {
  Random& random = shared_.random;
  const int ways = random.between(1, 4);  // 3, 4: both
  note(node, "cuts off");
  shared_.checks.connection_breaks(machine(node).id(), /*both_learn=*/false);
  if (ways != 1) network_.block(node, Way::up, true);
  if (ways != 2) network_.block(node, Way::down, true);
  shared_.queue.after(random.between(10ms, 20s), [this, node] {
    network_.block(node, Way::up, false);
    network_.block(node, Way::down, false);
  });
}

void World::crash(int node) {
  Random& random = shared_.random;
  Machine& machine = this->machine(node);
  if (!machine.alive()) return;
  machine.crash(/*power_lost=*/random.percent(30));
  if (random.percent(15)) return;
  ++starts_ahead_;
  // A coordinator that is back soon finds workers that live.
  const bool is_soon = node == 0 && scenario_.keeps_log && random.percent(70);
  shared_.queue.after(random.between(300ms, is_soon ? 4s : 20s), [this, &machine] {
    --starts_ahead_;
    machine.start_process();
  });
}

void World::go_and_come_back(int node, const PlannedFault& fault) {
  machine(node).crash(fault.power_lost);
  shared_.queue.after(fault.back_after + shared_.random.between(Time(0), 500ms), [this, node] {
    --starts_ahead_;
    if (!machine(node).alive()) machine(node).start_process();
  });
}

void World::send_signals(int node) {
  Random& random = shared_.random;
  note(node, "signals");
  const int number = random.percent(50) ? SIGINT : SIGTERM;
  if (node == 0 && random.percent(50)) return request_end(number);
  machine(node).signal(number);
  if (random.percent(50)) return;
  shared_.queue.after(random.between(10ms, 3s), [this, node, number] {
    note(node, "signals again");
    machine(node).signal(number);
  });
}

// Up to three times: to stop, to kill, and not to wait any longer.
void World::request_end(int number) {
  Random& random = shared_.random;
  machine(0).request_end(number);
  for (Time delay = random.between(10ms, 3s); random.percent(50); delay += 1s) {
    shared_.queue.after(delay, [this, number] { machine(0).request_end(number); });
  }
}

}  // namespace

Outcome simulate(std::uint64_t seed, Trace::Lines lines) {
  return simulate(make_scenario(seed), lines);
}

Outcome simulate(const Scenario& scenario, Trace::Lines lines) {
  World world(scenario, lines);
  Outcome outcome;
  try {
    world.run();
  } catch (const std::exception& error) {
    outcome.violation = error.what();
  }
  outcome.hash = world.trace().hash();
  outcome.events = world.trace().events();
  outcome.last_events.assign(world.trace().last().begin(), world.trace().last().end());
  outcome.tally = world.tally();
  outcome.virtual_time = world.now();
  outcome.traffic = world.traffic();
  outcome.visits = world.visits();
  outcome.held_epochs = world.held_epochs();
  return outcome;
}

}  // namespace lockstep::sim
