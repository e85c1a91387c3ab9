#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shm/shared_segment.h"

namespace lockstep {

/// Some ranks of a group that agree on something; the first of them asks. Every one of them makes
/// the same calls, which throw what Gloo throws.
struct Circle {
  c10::intrusive_ptr<c10d::Backend> gloo;
  int tag = 0;
  int rank = 0;            // this one
  std::vector<int> ranks;  // of the group
  std::vector<int> names;  // theirs in the world

  int size() const { return static_cast<int>(ranks.size()); }
  bool is_first() const { return rank == ranks.front(); }
  int place() const;

  /// From the first rank to all others.
  std::string from_first(const std::string& text) const;

  /// From all others to the first rank, which gets one text per rank.
  std::vector<std::string> to_first(const std::string& text) const;
};

struct AgreedSegment {
  std::optional<SharedSegment> segment;
  std::uint64_t mark = 0;  // the same on every rank, and in no other segment
  std::string refusal;     // why there is none; only the first rank knows all
};

/// The first rank makes a segment, zeroed, and the others map it, each of which reserves the memory
/// of its own range (`own`); all have seen that it is the same memory. Where `refusal` is not empty
/// at the first rank, nobody may use it: that, the caller tells the others. `check` throws Error
/// where this rank cannot or shall not share memory.
AgreedSegment agree_on_segment(const Circle& circle, std::size_t bytes,
                               const SharedSegment::Range& own, const std::function<void()>& check);

/// In front of reasons that are somebody's wish or the nature of the job, and not worth a line.
inline const std::string kNotWanted = "not wanted: ";
std::string without_mark(const std::string& reason);

}  // namespace lockstep
