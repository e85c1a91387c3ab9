#pragma once

#include <algorithm>
#include <cstddef>

#include "comm/group_team.h"

// For the sources of GroupTeam.
namespace lockstep {

// Receives that are posted before their data is needed, so that nobody waits for an invitation.
inline constexpr std::size_t kTeamAhead = 4;

/// What travels at once. Of less data smaller ones: otherwise machines would work one after the
/// other.
inline std::size_t team_chunk_bytes(std::size_t total) {
  constexpr std::size_t kSmallest = 32 << 10, kLargest = 256 << 10;
  return std::clamp(total / 16 / 64 * 64, kSmallest, kLargest);
}

/// A stretch of memory cut into pieces of one size, and a last one.
class TeamPieces {
 public:
  TeamPieces(std::size_t total, std::size_t piece) : total_(total), piece_(piece) {}

  std::size_t count() const { return (total_ + piece_ - 1) / piece_; }
  std::size_t begin(std::size_t index) const { return index * piece_; }
  std::size_t size(std::size_t index) const { return std::min(piece_, total_ - begin(index)); }

 private:
  std::size_t total_, piece_;
};

/// After an exception nobody shall wait for this rank, here or on other machines.
template <typename Body>
void GroupTeam::call(const ShmTeam::Announcement& announced, Body body) {
  try {
    begin_call(announced);
    body();
    end_call();
  } catch (...) {
    poison();
    if (options_.close) options_.close();
    throw;
  }
}

}  // namespace lockstep
