#include "sim/scale.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

// For each connection and each epoch of a node: join, prepare, ready, start, the words of its
// worker, recovered, stop, stopped, and what comes at the end of the job.
constexpr double kMostMessagesPerRound = 6;
// A question and an answer: where it is reached, whom it reaches there, and whom anywhere.
constexpr std::uint64_t kMostMessagesPerSurvey = 6;
// Group rank 0 gets the list of all nodes; nobody else gets anything that grows with the job.
constexpr std::size_t kLongestMessage = 2048;
constexpr std::size_t kMostBytesPerNodeInList = 120;
// Nodes and places that the coordinator looks at, for each message that it sends or gets.
constexpr double kMostVisitsPerMessage = 4;

std::string tenths(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << value;
  return text.str();
}

int rack_size(int agents) {
  return std::max(1, std::min(64, agents / 8));
}

}  // namespace

Scenario make_large_scenario(std::uint64_t seed, int agents) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  JobTerms& terms = scenario.terms;
  terms.run_id = "job";
  terms.min_nodes = terms.max_nodes = agents;
  terms.max_replacements = 1'000'000;
  terms.min_world = std::max(1, agents / 2);
  terms.beat_interval = 5s;
  terms.beat_limit = 20s;
  for (int i = 0; i < agents; ++i) {
    NodeScenario node;
    const bool is_slow = i > 0 && random.percent(1);
    node.start = is_slow ? random.between(2s, 40s) : random.between(Time(0), 2s);
    node.clock = {.offset = random.between(Time(0), 1'000'000s),
                  .parts_per_million = random.between(-1000, 1000)};
    node.address = i + 1;
    node.node_rank = i;
    scenario.nodes.push_back(node);
  }
  scenario.coordinator.terms = scenario.agent.terms = terms;
  scenario.agent.coordinator = "n0";
  scenario.agent.join_timeout = scenario.coordinator.join_timeout;
  scenario.agent.grace = 5s;
  scenario.coordinator.stop_limit = 20s;
  // One node is not reached where it wants to be, so that all take their second network.
  scenario.coordinator.surveys_network = true;
  scenario.second_network = true;
  scenario.nodes[static_cast<std::size_t>(agents / 2)].dead_address = true;

  scenario.trains = true;
  scenario.steps = 12;
  scenario.work = 180s;
  scenario.latest_start = 5s;

  const int rack = rack_size(agents);
  scenario.plan.push_back({.when = 70s,
                           .first = std::min(rack, agents - rack),
                           .count = rack,
                           .power_lost = true,
                           .back_after = 20s});
  const int wave = std::max(1, rack / 8);
  for (int i = 0; i < 5; ++i) {
    scenario.plan.push_back({.when = 130s + i * 8s,
                             .first = agents - (i + 1) * wave,
                             .count = wave,
                             .power_lost = false,
                             .back_after = 5s});
  }
  scenario.plan.push_back(
      {.when = 200s, .first = 0, .count = 1, .power_lost = false, .back_after = 1s});
  // Etcd stalls when the rack is noticed to be gone, and in the middle of the rolling reboot.
  scenario.stalls = {{.from = 85s, .until = 105s}, {.from = 140s, .until = 150s}};
  scenario.faults_end = 210s;
  scenario.end_limit = 1500s;
  return scenario;
}

std::string check_scale(const Scenario& scenario, const Outcome& outcome) {
  const auto agents = scenario.nodes.size();
  const Tally& tally = outcome.tally;
  require(tally.succeeded == 1 && tally.failed == 0, "the job did not end well");
  require(tally.coordinators == 2, tally.coordinators, " coordinators instead of two");
  const int rack = rack_size(static_cast<int>(agents));
  require(tally.left_out >= rack && tally.rejoined >= rack, "a rack of ", rack, " was lost; ",
          tally.left_out, " places were left out and ", tally.rejoined, " filled again");

  require(outcome.held_epochs > 0, "no epoch waited for etcd");

  std::uint64_t messages = 0, beats = 0, survey_messages = 0;
  double most = 0;
  std::size_t longest = 0;
  for (std::size_t node = 0; node < agents; ++node) {
    const Traffic& traffic = outcome.traffic[node];
    messages += traffic.messages;
    beats += traffic.beats;
    survey_messages += traffic.survey_messages;
    // One by each coordinator.
    require(traffic.surveys <= static_cast<std::uint64_t>(tally.coordinators), "n", node,
            " was asked about the network ", traffic.surveys, " times");
    require(traffic.survey_messages <= kMostMessagesPerSurvey * traffic.surveys, "n", node, " has ",
            traffic.survey_messages, " messages of ", traffic.surveys, " surveys");
    require(traffic.rounds > 0, "n", node, " took no part");
    most =
        std::max(most, static_cast<double>(traffic.messages) / static_cast<double>(traffic.rounds));
    if (node != 0) longest = std::max(longest, traffic.longest);
  }
  require(most <= kMostMessagesPerRound, tenths(most), " messages of one node in one epoch; ",
          kMostMessagesPerRound, " may be");
  require(longest <= kLongestMessage, "a message of ", longest, " bytes; ", kLongestMessage,
          " may be");
  const std::size_t list = outcome.traffic[0].longest;
  require(list <= kLongestMessage + kMostBytesPerNodeInList * agents, "a list of ", list,
          " bytes for ", agents, " nodes");
  require(survey_messages > 0, "nobody was asked about the network");
  const double visits =
      static_cast<double>(outcome.visits) / static_cast<double>(messages + beats + survey_messages);
  require(visits <= kMostVisitsPerMessage, tenths(visits), " looks at nodes for each message; ",
          kMostVisitsPerMessage, " may be");
  return concat(
      agents, " agents: ", tally.epochs, " epochs, ", tally.left_out, " places left out, ",
      tally.rejoined, " filled again, ", outcome.held_epochs, " epochs waited for etcd; at most ",
      tenths(most), " messages per agent and epoch, the longest ", longest, " bytes; ",
      tenths(static_cast<double>(messages) / static_cast<double>(agents)), " messages per agent, ",
      tenths(static_cast<double>(survey_messages) / static_cast<double>(agents)),
      " about the network, and ", tenths(static_cast<double>(beats) / static_cast<double>(agents)),
      " signs of life; ", tenths(visits), " looks at nodes per message");
}

}  // namespace lockstep::sim
