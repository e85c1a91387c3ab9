#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "shm/futex.h"
#include "shm/shared_segment.h"

namespace lockstep {

/// Blocks of bytes from one process to others of its machine, each of which gets all of them, in
/// order. The writer is at most kBlocks ahead of the slowest reader.
///
/// One thread at a time in each process.
class ShmRing {
 public:
  static constexpr std::uint32_t kBlocks = 4;
  static constexpr int kMostReaders = 64;

  struct Shape {
    std::size_t block_bytes = 0;
    int readers = 1;
  };

  /// Looks whether waiting still makes sense, and throws if not.
  using Check = std::function<void()>;

  /// For the writer. Throws Error where there is no memory for it.
  static ShmRing create(const Shape& shape);

  /// For the readers, until close_offer().
  const SegmentOffer& offer() const { return offer_; }
  void close_offer() { descriptor_ = {}; }

  /// For reader number `reader`, of the same shape. Throws Error if it is not there.
  static ShmRing open(const SegmentOffer& offer, const Shape& shape, int reader);

  /// The block to fill next, once nobody reads its last contents any more.
  std::byte* begin_write(const Check& check);
  void end_write();

  /// The next block, once it has been written.
  const std::byte* begin_read(const Check& check);
  void end_read();

 private:
  struct Control;

  ShmRing(SharedSegment segment, const Shape& shape, int reader);
  Control& control() const;
  std::byte* block(std::uint32_t number) const;
  static void wait_for(SharedCounter& counter, std::uint32_t wanted, const Check& check);

  SharedSegment segment_;
  UniqueFd descriptor_;
  SegmentOffer offer_;
  Shape shape_;
  int reader_ = 0;
  std::uint32_t number_ = 0;  // of blocks written, or read, here
};

}  // namespace lockstep
