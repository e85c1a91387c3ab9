#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/shared_segment.h"

namespace lockstep {

/// Memory of the same size for each rank of a machine. All of them have all of it mapped, so that
/// what is in it can be reduced in place.
class SharedBlock {
 public:
  struct Shape {
    int ranks = 1;
    std::size_t bytes = 0;  // for each of them
  };
  static std::size_t bytes_needed(const Shape& shape);
  /// What a rank reserves: its part, and the first one the beginning, too.
  static SharedSegment::Range own_range(const Shape& shape, int rank);

  /// `mark` tells it from all others, and is the same on every rank.
  SharedBlock(SharedSegment segment, const Shape& shape, int rank, std::uint64_t mark);

  std::byte* part(int rank) const;
  std::byte* own() const { return part(rank_); }
  std::size_t bytes() const { return shape_.bytes; }
  std::uint64_t mark() const { return mark_; }

 private:
  SharedSegment segment_;
  Shape shape_;
  int rank_;
  std::uint64_t mark_;
};

/// The blocks of a group that are in use.
///
/// Thread-safe.
class SharedBlocks {
 public:
  void add(std::shared_ptr<const SharedBlock> block);
  void remove(std::uint64_t mark);

  /// Where in this rank's part of a block something lies. Ranks that find the same mark and offset
  /// have their data side by side.
  struct Place {
    std::shared_ptr<const SharedBlock> block;  // null: in none
    std::size_t offset = 0;
  };
  Place find(const void* data, std::size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const SharedBlock>> blocks_;
};

}  // namespace lockstep
