// Jobs that meet through etcd, in virtual time; see docs/hacking.md.
#include <cstdio>
#include <exception>
#include <string>

#include "core/parse_integer.h"
#include "sim/planted.h"
#include "sim/takeover_world.h"

namespace {

std::uint64_t number(const char* text) {
  return lockstep::parse_integer<std::uint64_t>(text).value_or(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t first = 1, count = 1;
  bool trace = false, is_planted = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--trace") {
      trace = true;
    } else if ((word == "--seed" || word == "--first") && i + 1 < argc) {
      first = number(argv[++i]);
    } else if (word == "--seeds" && i + 1 < argc) {
      count = number(argv[++i]);
    } else if (word == "--plant" && i + 1 < argc) {
      is_planted = true;
      lockstep::sim::plant(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: sim_takeover --seed N [--trace] | --seeds COUNT [--first N]\n"
                   "       sim_takeover_mutants --seeds COUNT --plant NAME\n");
      return 2;
    }
  }
  lockstep::sim::TakeoverTally all;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    lockstep::sim::TakeoverWorld world(seed, trace);
    try {
      world.run();
    } catch (const std::exception& error) {
      std::printf("seed %llu: %s\nreplay: bin/sim_takeover --seed %llu --trace\n",
                  static_cast<unsigned long long>(seed), error.what(),
                  static_cast<unsigned long long>(seed));
      return is_planted ? 0 : 1;
    }
    const auto& tally = world.tally();
    all.epochs += tally.epochs;
    all.terms += tally.terms;
    all.recalled += tally.recalled;
    all.stepped_down += tally.stepped_down;
    all.two_at_once += tally.two_at_once;
    all.held += tally.held;
    all.late += tally.late;
    all.lived_through += tally.lived_through;
    all.succeeded += tally.succeeded;
    all.failed += tally.failed;
  }
  std::printf(
      "%llu seeds: %d epochs, %d coordinators, %d went on with an epoch of another, %d gave up,\n"
      "%d times two at once, %d epochs waited for etcd, %d late requests, %d workers lived on, %d "
      "nodes ended well, "
      "%d not\n",
      static_cast<unsigned long long>(count), all.epochs, all.terms, all.recalled, all.stepped_down,
      all.two_at_once, all.held, all.late, all.lived_through, all.succeeded, all.failed);
  if (is_planted) std::printf("all rules held, although a bug was planted\n");
  return is_planted ? 1 : 0;
}
