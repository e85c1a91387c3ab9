#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/unique_fd.h"

namespace lockstep {

/// What a process of the same machine needs to map another's segment, as text. It is valid as long
/// as the descriptor is open there.
struct SegmentOffer {
  int process_id = 0;
  int descriptor = -1;
  std::uint64_t mark = 0;  // is in the segment when it is the right one

  static SegmentOffer of_this_process(int descriptor);
  static SegmentOffer parse(const std::string& text);
  std::string to_text() const;
};

/// False where LOCKSTEP_SHM=0 forbids it to this process.
bool may_share_memory();

/// What a process reserves of a segment. It should be what it uses most: where memory belongs to
/// several sockets, the kernel takes that of the one on which the process runs.
struct SegmentRange {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

/// Memory that several processes of one machine have mapped. It has no name in any file system: the
/// kernel frees it with the last process that maps it, however that process ends.
class SharedSegment {
 public:
  using Range = SegmentRange;

  /// Zeroed memory, of which so much is reserved at once: a machine without enough says so here and
  /// not by a signal later. The rest is reserved by those who open it. Throws Error.
  static SharedSegment create(std::size_t bytes, const Range& own);
  static SharedSegment create(std::size_t bytes) {
    return create(bytes, {.begin = 0, .bytes = bytes});
  }

  /// Maps what process `process_id` has created under `descriptor`, and reserves memory of it.
  /// Throws Error.
  static SharedSegment open(int process_id, int descriptor, std::size_t bytes,
                            const Range& own = {});

  SharedSegment(SharedSegment&& other) noexcept
      : descriptor_(std::move(other.descriptor_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// Of a created segment: others can open it as long as this descriptor is. The memory does not
  /// depend on it.
  UniqueFd take_descriptor() { return std::move(descriptor_); }

 private:
  SharedSegment(UniqueFd descriptor, std::size_t bytes);

  UniqueFd descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
