#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace lockstep {

/// A number in shared memory that one process raises and others wait for. It wraps around, so it is
/// compared by distance.
///
/// Nobody waits, most of the time; then publishing costs no system call.
class alignas(64) SharedCounter {
 public:
  bool reached(std::uint32_t wanted) const {
    return is_past(value_.load(std::memory_order_acquire), wanted);
  }

  /// What this process wrote before is visible to whoever sees the new value.
  void publish(std::uint32_t value) {
    // In one order with the lines in sleep(): either this thread sees the sleeper or the sleeper
    // sees the value.
    value_.store(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
  }

  /// Gives the core away until the counter moves or the time is over; may return early.
  void sleep(std::uint32_t wanted, std::chrono::nanoseconds longest) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = value_.load(std::memory_order_seq_cst);
    if (!is_past(seen, wanted)) {
      const timespec limit{.tv_sec = longest.count() / 1'000'000'000,
                           .tv_nsec = longest.count() % 1'000'000'000};
      syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  /// Ends every sleep() that has begun.
  void wake() { syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

 private:
  static bool is_past(std::uint32_t value, std::uint32_t wanted) {
    return static_cast<std::int32_t>(value - wanted) >= 0;
  }

  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

/// Looks again and again for a short while, because a sleep and the wake-up cost more than most
/// waits last. It learns: after waits that it could not see the end of, it hardly tries any more;
/// one that it could makes it try longer again.
///
/// One thread at a time.
class Spin {
 public:
  explicit Spin(std::chrono::nanoseconds longest) : longest_(longest), budget_(longest) {}

  /// Whether `ready` came true in time.
  template <typename Ready>
  bool until(Ready ready) {
    if (longest_.count() == 0) return false;
    const auto end = std::chrono::steady_clock::now() + budget_;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        if (ready()) {
          budget_ = std::min(longest_, budget_ * 2);
          return true;
        }
        relax();
      }
    } while (std::chrono::steady_clock::now() < end);
    budget_ = std::max(longest_ / 32, budget_ / 2);
    return false;
  }

 private:
  static constexpr int kLooksPerClock = 16;

  // Leaves the core's units to its other hyperthread, where there is one.
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }

  std::chrono::nanoseconds longest_, budget_;
};

}  // namespace lockstep
