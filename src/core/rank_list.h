#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Ranks as people write them, in order and each once: "0-2, 5"; "0, 1".
std::string rank_numbers(std::vector<int> ranks);

/// The same with the word: "rank 3", "ranks 0-2, 5".
std::string list_ranks(const std::vector<int>& ranks);

/// The same, cut where it gets long: "ranks 0, 2, 4 and 497 more".
std::string list_some_ranks(const std::vector<int>& ranks);

}  // namespace lockstep
