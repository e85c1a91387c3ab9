#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// Which ranks of a group share a machine.
struct RankLayout {
  std::vector<std::vector<int>> machines;  // their ranks; machines and ranks in rank order
  std::vector<int> machine_of;             // by rank

  /// From the name of each rank's machine. Nothing where the ranks of a machine do not follow each
  /// other: sums in rank order would have to go to and fro between machines.
  static std::optional<RankLayout> of(const std::vector<std::string>& names);

  int machine_count() const { return static_cast<int>(machines.size()); }
  int leader(int machine) const { return machines[static_cast<std::size_t>(machine)].front(); }
  /// The place of a rank among those of its machine.
  int place(int rank) const { return rank - leader(machine_of[static_cast<std::size_t>(rank)]); }

  /// Whether no rank shares its machine with another.
  bool all_alone() const { return machines.size() == machine_of.size(); }
};

}  // namespace lockstep
