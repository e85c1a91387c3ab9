#include "doctor/pair_schedule.h"

#include <algorithm>

namespace lockstep {

std::vector<PairRound> schedule_pairs(int nodes, int most_rounds) {
  std::vector<PairRound> chosen;
  if (nodes < 2) return chosen;
  // One stays, and the others move around a table by a seat each round. With an odd number, who
  // faces the empty seat has a pause.
  const int seats = nodes + nodes % 2;
  const int rounds = seats - 1;
  const int wanted = most_rounds <= 0 ? rounds : std::min(rounds, most_rounds);
  for (int at = 0; at < wanted; ++at) {
    const int round = at * rounds / wanted;
    PairRound pairs;
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int one = seat == 0 ? seats - 1 : (round + seat) % rounds;
      const int other = seat == 0 ? round : (round + rounds - seat) % rounds;
      if (one < nodes && other < nodes) pairs.push_back(std::minmax(one, other));
    }
    chosen.push_back(std::move(pairs));
  }
  return chosen;
}

}  // namespace lockstep
