#include "core/rank_list.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {

std::string rank_numbers(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  std::string list;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    const bool run = last - first >= 2;
    if (!run) last = first;
    list += concat(list.empty() ? "" : ", ", ranks[first]);
    if (run) list += concat("-", ranks[last]);
    first = last + 1;
  }
  return list;
}

std::string list_some_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kLongest = 120;
  std::string text = list_ranks(ranks);
  if (text.size() <= kLongest) return text;
  text.erase(text.rfind(',', kLongest));
  // Those that are named: everything up to the last number in the text.
  const int last = std::stoi(text.substr(text.find_last_not_of("0123456789") + 1));
  const auto rest = std::ranges::count_if(ranks, [&](int rank) { return rank > last; });
  return concat(text, " and ", rest, " more");
}

std::string list_ranks(const std::vector<int>& ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", rank_numbers(ranks));
}

}  // namespace lockstep
