#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// Which ranks have another fingerprint than more than half of all; nothing where no fingerprint is
/// that of so many, so that nobody can say who is right.
inline std::optional<std::vector<int>> outvoted(const std::vector<std::string>& fingerprints) {
  std::map<std::string, std::size_t> votes;
  for (const std::string& fingerprint : fingerprints) ++votes[fingerprint];
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& candidate) { return candidate.second; });
  if (most == votes.end() || 2 * most->second <= fingerprints.size()) return std::nullopt;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank] != most->first) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace lockstep
