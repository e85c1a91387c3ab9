#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "comm/futex.h"
#include "comm/shared_segment.h"

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

  /// What a reader needs to open the ring. It is valid until close_offer().
  struct Offer {
    int process_id = 0;
    int descriptor = -1;
    std::uint64_t mark = 0;  // is in the memory when it is the right one

    std::string to_text() const;
    static Offer parse(const std::string& text);
  };

  /// For the writer. Throws Error where there is no memory for it.
  static ShmRing create(const Shape& shape);
  Offer offer() const;
  void close_offer() { descriptor_ = {}; }

  /// For reader number `reader`, of the same shape. Throws Error if it is not there.
  static ShmRing open(const Offer& offer, const Shape& shape, int reader);

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
  Shape shape_;
  int reader_ = 0;
  std::uint32_t number_ = 0;  // of blocks written, or read, here
};

}  // namespace lockstep
