#include "comm/rank_layout.h"

#include <set>

namespace lockstep {

std::optional<RankLayout> RankLayout::of(const std::vector<std::string>& names) {
  RankLayout layout;
  std::set<std::string> seen;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (rank == 0 || names[rank] != names[rank - 1]) {
      if (!seen.insert(names[rank]).second) return std::nullopt;
      layout.machines.emplace_back();
    }
    layout.machines.back().push_back(static_cast<int>(rank));
    layout.machine_of.push_back(layout.machine_count() - 1);
  }
  return layout;
}

}  // namespace lockstep
