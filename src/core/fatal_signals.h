#pragma once

#include <csignal>
#include <iterator>

namespace lockstep {

inline constexpr int kFatalSignals[] = {
    SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT,
    SIGTRAP,  // what __builtin_trap() raises on some processors
};

/// While it lives, a fatal signal in any thread is reported before the process dies of it. On the
/// thread that made it this works even when the stack is full. Needs prepare_crash_report().
class FatalSignals {
 public:
  FatalSignals();
  ~FatalSignals();
  FatalSignals(const FatalSignals&) = delete;
  FatalSignals& operator=(const FatalSignals&) = delete;

 private:
  struct sigaction before_[std::size(kFatalSignals)];
  stack_t stack_before_ = {};
};

/// Ends the process by this signal's default action.
[[noreturn]] void die_of(int signal);

}  // namespace lockstep
