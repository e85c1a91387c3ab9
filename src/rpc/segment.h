#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "core/unique_fd.h"

namespace lockstep::rpc {

/// Memory of a memfd that is mapped here. It has no name in any file system: the kernel frees it
/// with the last process that has it, however that ends.
class MappedMemory {
 public:
  enum class Pages { now, when_touched };
  MappedMemory(int descriptor, std::size_t bytes, Pages pages);  // throws SystemError
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Maps what a peer has sent, after making sure that it cannot shrink: touching pages that are no
/// longer there would end the process. It takes no memory before it is touched. Throws BadMessage,
/// SystemError.
std::shared_ptr<MappedMemory> map_received(UniqueFd descriptor, std::size_t bytes);

/// Of this machine, in bytes.
std::size_t physical_memory();

/// One memfd of a pool, at the one who made it.
struct Segment {
  std::uint64_t id = 0;
  UniqueFd descriptor;
  std::unique_ptr<MappedMemory> memory;
  bool retired = false;  // someone may still look at it: not to be used again

  std::byte* data() const { return memory->data(); }
  std::size_t bytes() const { return memory->bytes(); }
};

/// Segments that are used again and again: making one costs more than copying into it. Thread-safe.
class SegmentPool : public std::enable_shared_from_this<SegmentPool> {
 public:
  /// Each is a descriptor, so that they are counted, too.
  static constexpr std::size_t kMaxIdle = 64;

  /// `freed` is told when a segment is gone for good, from any thread.
  static std::shared_ptr<SegmentPool> create(std::size_t max_idle_bytes,
                                             std::function<void(std::uint64_t)> freed);

  /// One of at least so many bytes. It comes back when its last owner lets go. Null where the
  /// machine has none to give.
  std::shared_ptr<Segment> take(std::size_t bytes);

  struct Place {
    std::shared_ptr<Segment> segment;
    std::size_t offset = 0;
  };
  /// The segment that this memory lies in.
  std::optional<Place> find(const void* data, std::size_t bytes);

  /// The segment is not handed out again, because a peer that was cut off may still look at it.
  void retire(const std::shared_ptr<Segment>& segment);

  std::size_t idle_bytes() const;
  std::size_t used() const;  // segments that are handed out

 private:
  SegmentPool(std::size_t max_idle_bytes, std::function<void(std::uint64_t)> freed)
      : max_idle_bytes_(max_idle_bytes), freed_(std::move(freed)) {}
  void give_back(std::unique_ptr<Segment> segment);

  const std::size_t max_idle_bytes_;
  const std::function<void(std::uint64_t)> freed_;
  mutable std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::size_t idle_bytes_ = 0;
  std::multimap<std::size_t, std::unique_ptr<Segment>> idle_;  // by size
  std::map<const std::byte*, std::weak_ptr<Segment>> used_;    // by address
};

}  // namespace lockstep::rpc
