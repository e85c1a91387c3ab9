#pragma once

#include <sys/types.h>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep {

/// A thread's registers by DWARF's numbers for this processor, which unwinding works with.
struct ThreadRegisters {
#if defined(__x86_64__)
  static constexpr int kFramePointer = 6, kStackPointer = 7, kReturnAddress = 16, kCount = 17;
#else
  static constexpr int kFramePointer = 29, kStackPointer = 31, kReturnAddress = 30, kCount = 32;
#endif
  std::array<std::uint64_t, kCount> values{};
  std::uint64_t pc = 0;
};

/// Whether this is built for a processor whose registers are known.
bool can_trace_threads();

/// Holds a thread of another process as long as it lives: one that runs stands still and goes on
/// afterwards, also in the middle of a system call; one that a signal has stopped stays stopped. It
/// goes on, too, when the process or the thread that holds it dies.
///
/// Only the thread that made it may use or destroy it.
class TracedThread {
 public:
  TracedThread(pid_t tid, std::chrono::steady_clock::time_point deadline);
  ~TracedThread();
  TracedThread(const TracedThread&) = delete;
  TracedThread& operator=(const TracedThread&) = delete;

  /// 0, or why the thread is not held: ESRCH, there is none any more; EPERM, the kernel does not
  /// permit it, or a debugger holds it; ETIMEDOUT, it waits in the kernel where nothing reaches it.
  /// Then it is let go of when the calling thread ends.
  int error() const { return error_; }

  /// std::nullopt when the thread is not held, or has been killed meanwhile.
  std::optional<ThreadRegisters> registers() const;

 private:
  int hold(std::chrono::steady_clock::time_point deadline);

  pid_t tid_;
  int error_ = 0;
  int signal_ = 0;  // on its way to the thread when it was stopped: given to it afterwards
};

}  // namespace lockstep
