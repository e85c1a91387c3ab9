#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/team.h"

// What a team's segment holds; for the team's own sources.
namespace lockstep {

// Writing, combining and collecting take place on three chunks; with a fourth buffer a rank that is
// late does not stop the others at once.
inline constexpr std::uint32_t kTeamBuffers = 4;
inline constexpr std::size_t kTeamLine = 64;  // bytes that travel between cores together
// Up to this size every rank reduces everything: that needs one meeting instead of two.
inline constexpr std::size_t kTeamWholeBytes = 16 << 10;
// From this size on ranks first find out whether their data lies side by side, which takes a
// meeting.
inline constexpr std::size_t kTeamInPlaceBytes = 256 << 10;

struct ShmTeam::RankControl {
  SharedCounter written;  // the number of the last chunk whose data is in the segment
  SharedCounter reduced;  // ... whose own share has been combined
  SharedCounter read;     // ... of which nothing will be read any more
  alignas(kTeamLine) std::array<Announcement, kTeamBuffers> announced;  // by buffer
};

struct ShmTeam::Control {
  alignas(kTeamLine) std::atomic<std::uint32_t> poisoned;
  RankControl ranks[];
};

/// The part of a tensor that passes at once, and whose share of it is whose.
struct ShmTeam::Chunk {
  std::uint32_t number;
  std::byte* data;  // in the tensor
  std::size_t bytes;
  std::size_t share_bytes;

  std::size_t begin(int owner) const {
    return std::min(bytes, share_bytes * static_cast<std::size_t>(owner));
  }
  std::size_t size(int owner) const { return begin(owner + 1) - begin(owner); }
};

/// Any exception leaves the ranks' counters in disagreement: nobody shall wait for this rank.
template <typename Body>
void ShmTeam::guarded(Body body) {
  try {
    body();
  } catch (...) {
    poison();
    throw;
  }
}

template <typename Write, typename Read>
void ShmTeam::pass_chunks(std::size_t chunks, std::uint32_t lag, const Announcement& announced,
                          Write write, Read read) {
  const std::uint32_t first = number_ + 1;
  for (std::size_t step = 0; step < chunks + lag; ++step) {
    if (step < chunks) {
      const std::uint32_t number = first + static_cast<std::uint32_t>(step);
      acquire(number, announced);
      write(step, slot(options_.rank, number));
      publish_written(number);
    }
    if (step >= lag) {
      const std::uint32_t number = first + static_cast<std::uint32_t>(step) - lag;
      read(step - lag, number);
      publish_read(number);
    }
  }
  number_ += static_cast<std::uint32_t>(chunks);
}

}  // namespace lockstep
