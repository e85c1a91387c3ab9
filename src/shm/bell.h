#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace lockstep {

/// Something in shared memory that any process may ring, and that its owner sleeps by.
class alignas(64) Bell {
 public:
  /// What sleep() is told. Whoever reads it before looking for news misses none.
  std::uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }

  void ring() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, &rings_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  /// Until it has rung since `seen`, or the time is over; may return early.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds longest) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (rings() == seen) {
      const timespec limit{.tv_sec = longest.count() / 1'000'000'000,
                           .tv_nsec = longest.count() % 1'000'000'000};
      syscall(SYS_futex, &rings_, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace lockstep
