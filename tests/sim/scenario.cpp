#include "sim/scenario.h"

#include <algorithm>

#include "lockstep/error.h"
#include "sim/random.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

double seconds(Time time) {
  return std::chrono::duration<double>(time).count();
}

void choose_terms(Scenario& scenario, Random& random, int nodes) {
  JobTerms& terms = scenario.terms;
  terms.run_id = "job";
  terms.max_restarts = random.percent(15) ? 0 : random.between(1, 8);
  terms.min_nodes = terms.max_nodes = nodes;
  if (random.percent(60)) {
    terms.max_nodes = random.between(1, nodes + 1);  // fewer than there are: the rest are spares
    terms.min_nodes = random.between(1, terms.max_nodes);
  }
}

void choose_nodes(Scenario& scenario, Random& random, int nodes) {
  const bool ranked = scenario.terms.max_nodes >= nodes && random.percent(40);
  for (int i = 0; i < nodes; ++i) {
    NodeScenario node;
    node.start = random.between(Time(0), 2s);
    if (i > 0 && random.percent(15)) node.start = random.between(2s, 40s);
    node.never_comes = i > 0 && random.percent(2);
    node.other_run_id = i > 0 && random.percent(1);
    node.clock = {.offset = random.between(Time(0), 1'000'000s),
                  .parts_per_million = random.between(-1000, 1000)};
    node.workers = random.between(1, 3);
    node.address = i + 1;
    if (ranked) node.node_rank = i;
    scenario.nodes.push_back(node);
  }
  // The coordinator's node need not be the first in the order of ranks.
  for (int i = nodes - 1; i > 0; --i) {
    NodeScenario& one = scenario.nodes[static_cast<std::size_t>(i)];
    NodeScenario& other = scenario.nodes[static_cast<std::size_t>(random.between(0, i))];
    std::swap(one.address, other.address);
    std::swap(one.node_rank, other.node_rank);
  }
}

void choose_times(Scenario& scenario, Random& random) {
  CoordinatorOptions& coordinator = scenario.coordinator;
  coordinator.terms = scenario.terms;
  coordinator.join_timeout = random.between(20s, 60s);
  coordinator.last_call = random.between(1s, 8s);
  AgentOptions& agent = scenario.agent;
  agent.terms = scenario.terms;
  agent.coordinator = "n0";
  agent.join_timeout = coordinator.join_timeout;
  agent.grace = random.between(1s, 6s);
  coordinator.stop_limit = 2 * agent.grace + 10s;
}

void choose_training(Scenario& scenario, Random& random) {
  scenario.trains = random.percent(50);
  if (!scenario.trains) return;
  scenario.terms.max_replacements = random.percent(10) ? 0 : random.between(1, 30);
  scenario.steps = random.between(3, 40);
  scenario.must_survive = random.percent(30);
  if (random.percent(40)) scenario.spares = random.between(1, 2);
  scenario.latest_start = scenario.must_survive ? 6s : 20s;  // losses wait 10 s for it
  if (!scenario.must_survive) return;
  scenario.terms.max_replacements = 100'000;
  scenario.failing_percent = scenario.broken_percent = scenario.losing_percent = 0;
  scenario.work = std::max<Time>(scenario.work, 10s);
  scenario.fault_gap = random.between(300ms, 5s);
  scenario.faults_end = std::max<Time>(scenario.faults_end, 60s);
  scenario.terms.min_nodes = scenario.terms.max_nodes = static_cast<int>(scenario.nodes.size());
  for (NodeScenario& node : scenario.nodes) {
    node.never_comes = node.other_run_id = false;
    node.start = random.between(Time(0), 2s);
  }
}

void choose_shrinking(Scenario& scenario, Random& random) {
  if (!scenario.trains || random.percent(50)) return;
  int places = 0;
  for (const NodeScenario& node : scenario.nodes) places += node.workers;
  JobTerms& terms = scenario.terms;
  terms.min_world = scenario.must_survive ? 1 : random.between(1, places);
  scenario.coordinator.rejoin_after = random.between(200ms, 5s);
  if (random.percent(40)) scenario.unstartable_percent = random.between(5, 40);
  if (!scenario.must_survive) return;
  // Long enough for those that were left out to come back when nothing fails any more.
  scenario.work = random.between(30s, 200s);
  scenario.steps = random.between(20, 60);
  terms.max_replacements = random.percent(50) ? 100'000 : random.between(0, 20);
}

void choose_network(Scenario& scenario, Random& random) {
  // As with --network-check off, for some of those whose nodes come and go.
  scenario.coordinator.surveys_network = !scenario.terms.elastic() || scenario.seed % 2 == 0;
  scenario.second_network = random.percent(30);
  if (scenario.second_network) {
    for (NodeScenario& node : scenario.nodes) node.dead_address = random.percent(40);
  } else if (!scenario.must_survive && random.percent(2)) {
    const int last = static_cast<int>(scenario.nodes.size()) - 1;
    scenario.nodes[static_cast<std::size_t>(random.between(0, last))].dead_address = true;
  }
}

}  // namespace

Time Clock::real(Time local) const {
  const auto distance = static_cast<double>((local - offset).count());
  Time guess(static_cast<std::int64_t>(distance /
                                       (1.0 + static_cast<double>(parts_per_million) / 1'000'000)));
  while (this->local(guess) < local) guess += 1us;
  return guess;
}

Scenario make_scenario(std::uint64_t seed) {
  Random random(seed * 0x2545f4914f6cdd1dULL + 1);
  Scenario scenario;
  scenario.seed = seed;
  const int nodes = random.percent(5) ? 1 : random.between(2, 6);
  choose_terms(scenario, random, nodes);
  choose_nodes(scenario, random, nodes);
  choose_times(scenario, random);

  scenario.work = random.between(1s, 40s);
  scenario.uneven = random.percent(50) ? 500ms : random.between(500ms, 15s);
  scenario.contagious = random.percent(60);
  scenario.failing_percent = random.percent(60) ? random.between(1, 15) : 0;
  scenario.stuck_percent = random.percent(10) ? 20 : 0;
  scenario.ignoring_percent = random.percent(40) ? 30 : 0;
  scenario.grandchild_percent = random.percent(40) ? 30 : 0;
  scenario.resume_percent = random.percent(30) ? 30 : 0;
  scenario.broken_percent = random.percent(10) ? 20 : 0;
  if (random.percent(85))
    scenario.fault_gap = random.percent(50) ? random.between(100ms, 2s) : random.between(2s, 15s);
  if (scenario.fault_gap != Time(0) && random.percent(50)) {
    scenario.losing_percent = random.percent(30) ? random.between(15, 40) : random.between(1, 15);
  }
  if (random.percent(50)) scenario.repeating_percent = random.between(1, 30);
  scenario.faults_end = random.between(45s, 150s);

  // Drawn last, so that what was there before stays as it was for each seed.
  scenario.terms.local_store = random.percent(25);
  choose_training(scenario, random);
  choose_shrinking(scenario, random);
  if (random.percent(10)) scenario.warning = random.between(1s, 60s);
  scenario.coordinator.terms = scenario.agent.terms = scenario.terms;
  scenario.keeps_log = random.percent(50);
  choose_network(scenario, random);

  // Each of the restarts, and each node that comes or goes, costs at most one turn.
  const CoordinatorOptions& coordinator = scenario.coordinator;
  const Time turn = coordinator.last_call + scenario.work + scenario.uneven +
                    coordinator.stop_limit + 2 * scenario.terms.beat_limit + scenario.latest_start +
                    20s;
  scenario.end_limit = scenario.faults_end + 2 * coordinator.join_timeout +
                       (scenario.terms.max_restarts + nodes + 2) * turn +
                       std::min(scenario.terms.max_replacements, 100) * 10s;
  return scenario;
}

bool Scenario::has_network() const {
  return second_network || std::ranges::none_of(nodes, &NodeScenario::dead_address);
}

std::string Scenario::describe() const {
  std::string text = concat(
      "nodes ", terms.min_nodes, ":", terms.max_nodes, " of ", nodes.size(),
      terms.local_store ? ", local store" : "", keeps_log ? ", the coordinator keeps a log" : "",
      ", max_restarts ", terms.max_restarts, ", join_timeout ", seconds(coordinator.join_timeout),
      " s, last_call ", seconds(coordinator.last_call), " s, grace ", seconds(agent.grace),
      " s, stop_limit ", seconds(coordinator.stop_limit), " s\nworkers: ", seconds(work),
      " s of work, some ", seconds(uneven), " s more, ", failing_percent, " % fail (",
      resume_percent, " % of them with 75", contagious ? ", others follow" : "", "), ",
      ignoring_percent, " % ignore SIGTERM, ", grandchild_percent, " % leave processes, ",
      stuck_percent, " % cannot be killed, ", broken_percent, " % of stores fail",
      trains ? concat("; they train ", steps, " steps, up to ", terms.max_replacements,
                      " are replaced, ", spares, " spares, at least ", terms.min_world,
                      " go on, those that are left out are tried again after ",
                      seconds(coordinator.rejoin_after), " s, ", unstartable_percent,
                      " % cannot be started", must_survive ? ", and the job must survive" : "")
             : "",
      "\nfaults: ");
  text += fault_gap == Time(0)
              ? "none"
              : concat("every ", seconds(fault_gap), " s until ", seconds(faults_end), " s, ",
                       losing_percent, " % of messages lost");
  text += concat(", ", repeating_percent, " % of messages repeated; must end by ",
                 seconds(end_limit), " s");
  if (second_network) text += "; a second network, 10.1.0";
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeScenario& node = nodes[i];
    text += concat(
        "\nn", i, ": 10.0.0.", node.address, ", ", node.workers, " workers, ",
        node.never_comes ? "never comes" : concat("comes at ", seconds(node.start), " s"),
        node.node_rank ? concat(", node rank ", *node.node_rank) : "",
        node.other_run_id ? ", another run id" : "", node.dead_address ? ", not reached there" : "",
        ", clock ", seconds(node.clock.offset), " s ", node.clock.parts_per_million, " ppm");
  }
  return text;
}

}  // namespace lockstep::sim
