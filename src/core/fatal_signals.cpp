#include "core/fatal_signals.h"

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "core/backtrace.h"
#include "core/crash_report.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Where the handler runs on the thread that called record(). Static, because threads can still
// crash while the process exits.
constexpr std::size_t kStackSize = 256 << 10;
alignas(16) char handler_stack[kStackSize];

const void* interrupted_at(const void* context) {
  const auto* user = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(user->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(user->uc_mcontext.pc);
#else
  (void)user;
  return nullptr;  // the report then begins with the handler's own frames
#endif
}

void unblock(int signal) {
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
}

// Sends `signal` to this process later. Made of system calls: the C library's timers allocate.
void send_later(int signal, int seconds) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  int timer = 0;  // the kernel's timer_t
  itimerspec when = {};
  when.it_value.tv_sec = seconds;
  if (::syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0) {
    ::syscall(SYS_timer_settime, timer, 0, &when, nullptr);
  }
}

void describe(int signal, const siginfo_t& info, FixedText& text) {
  text.add("signal ").add_decimal(static_cast<std::uint64_t>(signal)).add(" received by PID ");
  text.add_decimal(static_cast<std::uint64_t>(::getpid()));
  if (info.si_code > 0 && (signal == SIGSEGV || signal == SIGBUS)) {
    text.add(" on access to ").add_hex(reinterpret_cast<std::uintptr_t>(info.si_addr));
  } else if (info.si_code <= 0 && info.si_pid != ::getpid()) {
    text.add(", sent by PID ").add_decimal(static_cast<std::uint64_t>(info.si_pid));
  }
}

void report(int signal, const siginfo_t& info, const void* context) {
  char type_storage[32];
  const char* name = ::sigabbrev_np(signal);
  FixedText type(type_storage);
  type.add("SIG").add(name == nullptr ? "?" : name);
  char text_storage[256];
  FixedText text(text_storage);
  describe(signal, info, text);
  Failure failure = {.type = type.view(), .text = text.view()};

  // First what is certain to work: no function that allocates or takes a lock.
  write_error_file(failure);
  print_failure(failure);

  // Then the stack. Walking it may crash, if that is what is broken: the handler is then entered
  // again and ends the process. Naming its functions takes the dynamic loader's lock, which this
  // thread can take again, but which another thread may hold in dlopen() while it waits for
  // something that this thread holds, such as malloc's lock. So a timer ends the process in any
  // case. Either way the file of above stays.
  constexpr int kSeconds = 3;
  send_later(signal, kSeconds);
  unblock(signal);  // a handler's own signal is blocked, and other threads may block it as well
  static Backtrace backtrace;
  capture(backtrace);
  begin_at(backtrace, interrupted_at(context));
  static char stack_storage[32 << 10];
  FixedText stack(stack_storage);
  add_frames(backtrace, Names::mangled, stack);
  failure.stack_title = "C++ backtrace (most recent call first; c++filt makes the names readable):";
  failure.stack = stack.view();
  write_error_file(failure);
}

void on_fatal_signal(int signal, siginfo_t* info, void* context) {
  const bool out_of_time = info->si_code == SI_TIMER && claimed_signal() != 0;
  if (!out_of_time) {
    if (claim_crash_report(signal) == Claim::mine) {
      report(signal, *info, context);
      finish_crash_report();
    }
  }
  // A failure while reporting must not hide what was to be reported.
  die_of(claimed_signal() != 0 ? claimed_signal() : signal);
}

}  // namespace

void die_of(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  unblock(signal);
  ::raise(signal);
  ::_exit(128 + signal);
}

FatalSignals::FatalSignals() {
  prime_backtrace();

  stack_t stack = {};
  stack.ss_sp = handler_stack;
  stack.ss_size = sizeof handler_stack;
  if (::sigaltstack(&stack, &stack_before_) != 0) {
    throw_errno("cannot set the stack for signal handlers");
  }

  struct sigaction action = {};
  action.sa_sigaction = on_fatal_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t at = 0; at < std::size(kFatalSignals); ++at) {
    ::sigaction(kFatalSignals[at], &action, &before_[at]);
  }
}

FatalSignals::~FatalSignals() {
  for (std::size_t at = 0; at < std::size(kFatalSignals); ++at) {
    ::sigaction(kFatalSignals[at], &before_[at], nullptr);
  }
  ::sigaltstack(&stack_before_, nullptr);
}

}  // namespace lockstep
