// Runs the launcher's coordinator and agents in virtual time; see docs/hacking.md.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "core/parse_integer.h"
#include "lockstep/error.h"
#include "sim/planted.h"
#include "sim/scale.h"
#include "sim/scenario.h"
#include "sim/world.h"

namespace lockstep::sim {
namespace {

struct Options {
  std::uint64_t first = 1;
  std::uint64_t count = 1;
  int agents = 0;  // of one large job instead; 0: none
  bool trace = false;
  std::string planted;  // the name of a bug
};

constexpr const char* kUsage =
    "usage: sim --seed N [--trace]           one job, twice; --trace prints every event\n"
    "       sim --seeds COUNT [--first N]    many jobs\n"
    "       sim --agents N [--seed N]        one job on very many nodes\n"
    "       sim_mutants --seeds COUNT --plant NAME [--first N]\n"
    "                                        fails when all rules hold although it has a bug\n";

std::uint64_t number_after(const std::vector<std::string>& words, std::size_t at) {
  const auto number =
      at + 1 < words.size() ? parse_integer<std::uint64_t>(words[at + 1]) : std::nullopt;
  if (!number) throw InvalidArgument(words[at] + " needs a number");
  return *number;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--seed" || words[i] == "--first") {
      options.first = number_after(words, i++);
    } else if (words[i] == "--seeds") {
      options.count = number_after(words, i++);
    } else if (words[i] == "--agents") {
      options.agents = static_cast<int>(number_after(words, i++));
      if (options.agents < 16 || options.agents > 20'000) {
        throw InvalidArgument("--agents is a number from 16 to 20000");
      }
    } else if (words[i] == "--trace") {
      options.trace = true;
    } else if (words[i] == "--plant") {
      if (i + 1 == words.size()) throw InvalidArgument("--plant needs a name");
      options.planted = words[++i];
    } else {
      throw InvalidArgument(concat("unknown option '", words[i], "'\n", kUsage));
    }
  }
  return options;
}

void explain(std::uint64_t seed, const std::string& violation) {
  const Outcome replay = simulate(seed, Trace::Lines::keep_last);
  std::printf("seed %llu: %s\n\n%s\n\nlast events:\n", static_cast<unsigned long long>(seed),
              violation.c_str(), make_scenario(seed).describe().c_str());
  for (const std::string& line : replay.last_events) std::printf("%s\n", line.c_str());
  std::printf("\nreplay: bin/sim --seed %llu --trace\n", static_cast<unsigned long long>(seed));
}

/// True when a rule was broken.
bool run_seed(std::uint64_t seed, const Options& options, Tally& tally, std::uint64_t& events) {
  const Outcome first = simulate(seed, options.trace ? Trace::Lines::print : Trace::Lines::none);
  tally += first.tally;
  events += first.events;
  if (first.violation) {
    if (!options.planted.empty()) {
      std::printf("seed %llu finds it: %s\n", static_cast<unsigned long long>(seed),
                  first.violation->c_str());
    } else {
      explain(seed, *first.violation);
    }
    return true;
  }
  if (!options.planted.empty()) return false;
  if (simulate(seed, Trace::Lines::none).hash != first.hash) {
    explain(seed, "the second run went another way than the first");
    return true;
  }
  return false;
}

int run_large(const Options& options) {
  const Scenario scenario = make_large_scenario(options.first, options.agents);
  const auto begun = std::chrono::steady_clock::now();
  const Outcome outcome =
      simulate(scenario, options.trace ? Trace::Lines::print : Trace::Lines::keep_last);
  const std::chrono::duration<double> real = std::chrono::steady_clock::now() - begun;
  try {
    if (outcome.violation) throw Violation(*outcome.violation);
    std::printf("%s\n", check_scale(scenario, outcome).c_str());
  } catch (const Violation& violation) {
    for (const std::string& line : outcome.last_events) std::printf("%.300s\n", line.c_str());
    std::printf("%d agents, seed %llu: %s\n", options.agents,
                static_cast<unsigned long long>(options.first), violation.what());
    return 1;
  }
  std::printf("%.1f s simulated in %.1f s\n",
              std::chrono::duration<double>(outcome.virtual_time).count(), real.count());
  return 0;
}

int run(const Options& options) {
  if (options.agents > 0) return run_large(options);
  plant(options.planted.c_str());
  Tally tally;
  std::uint64_t events = 0;
  for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
    if (run_seed(seed, options, tally, events)) return options.planted.empty() ? 1 : 0;
  }
  std::printf(
      "%llu seeds, %llu events: %d epochs, %d restarts, %d recoveries, %d places left out, %d "
      "filled again, %d nodes taken in,\n%d coordinators (%d went on from a record), %d joins of "
      "nodes at work, "
      "%d jobs succeeded, %d failed, %d nodes refused, %d warned\n",
      static_cast<unsigned long long>(options.count), static_cast<unsigned long long>(events),
      tally.epochs, tally.restarts, tally.recoveries, tally.left_out, tally.rejoined,
      tally.reseated, tally.coordinators, tally.recalled, tally.rejoined_at_work, tally.succeeded,
      tally.failed, tally.refused, tally.warned);
  if (options.planted.empty()) return 0;
  std::printf("all rules held, although a bug was planted\n");
  return 1;
}

}  // namespace
}  // namespace lockstep::sim

int main(int argc, char** argv) {
  try {
    return lockstep::sim::run(lockstep::sim::parse({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sim: %s\n", error.what());
    return 2;
  }
}
