#pragma once

#include <utility>
#include <vector>

namespace lockstep {

/// Pairs of nodes that are measured at the same time: each node is in one of them at most.
using PairRound = std::vector<std::pair<int, int>>;

/// Rounds in which every node meets every other once, as in a tournament. With more nodes than
/// `most_rounds` + 1, some of these rounds, spread evenly, so that each node is in about
/// `most_rounds` pairs and the time does not grow with their number. 0: all.
std::vector<PairRound> schedule_pairs(int nodes, int most_rounds);

}  // namespace lockstep
