#pragma once

#include <cstdint>

namespace lockstep {

/// Which slots of a job this process computes. Slots are logical ranks: their number is fixed by
/// the first world of a job, and samples, random numbers and the order of additions go by slots, so
/// that a job that is resumed with fewer processes computes the same bits.
struct SlotShare {
  int slots = 1;
  int first = 0;  // this process has the slots [first, last)
  int last = 1;
  int world_size = 1;

  int count() const { return last - first; }

  /// Every process has one slot, its own: gradients can be reduced while backward runs.
  bool one_each() const { return slots == world_size; }

  bool operator==(const SlotShare&) const = default;

  /// Ranks hold neighbouring slots, as evenly as it goes.
  static SlotShare of(int slots, int rank, int world_size) {
    const auto begin_of = [&](std::int64_t who) {
      return static_cast<int>(who * slots / world_size);
    };
    return {.slots = slots,
            .first = begin_of(rank),
            .last = begin_of(rank + 1),
            .world_size = world_size};
  }
};

}  // namespace lockstep
