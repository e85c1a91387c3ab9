#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lockstep {

/// What goes before a message's bytes.
struct MailHeader {
  std::uint32_t tag = 0;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
};

/// A stream of bytes from one process to another, in shared memory that was zeroed.
class MailRing {
 public:
  struct alignas(64) Control {
    alignas(64) std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
  };

  MailRing(std::byte* memory, std::size_t bytes)
      : control_(reinterpret_cast<Control*>(memory)),
        data_(memory + sizeof(Control)),
        bytes_(bytes - sizeof(Control)) {}

  std::size_t room() const {
    return bytes_ - static_cast<std::size_t>(control_->written.load(std::memory_order_relaxed) -
                                             control_->read.load(std::memory_order_acquire));
  }
  std::size_t available() const {
    return static_cast<std::size_t>(control_->written.load(std::memory_order_acquire) -
                                    control_->read.load(std::memory_order_relaxed));
  }

  /// There must be room for so many.
  void write(const void* from, std::size_t count) {
    const std::uint64_t at = control_->written.load(std::memory_order_relaxed);
    const std::size_t begin = static_cast<std::size_t>(at % bytes_);
    const std::size_t first = std::min(count, bytes_ - begin);
    if (first > 0) std::memcpy(data_ + begin, from, first);
    if (count > first)
      std::memcpy(data_, static_cast<const std::byte*>(from) + first, count - first);
    control_->written.store(at + count, std::memory_order_release);
  }

  /// So many must be available. Null: they are thrown away.
  void read(void* to, std::size_t count) {
    const std::uint64_t at = control_->read.load(std::memory_order_relaxed);
    const std::size_t begin = static_cast<std::size_t>(at % bytes_);
    const std::size_t first = std::min(count, bytes_ - begin);
    if (to != nullptr && first > 0) std::memcpy(to, data_ + begin, first);
    if (to != nullptr && count > first) {
      std::memcpy(static_cast<std::byte*>(to) + first, data_, count - first);
    }
    control_->read.store(at + count, std::memory_order_release);
  }

  std::byte* memory() const { return reinterpret_cast<std::byte*>(control_); }
  std::size_t memory_bytes() const { return bytes_ + sizeof(Control); }

 private:
  Control* control_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace lockstep
