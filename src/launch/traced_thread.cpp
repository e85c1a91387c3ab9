#include "launch/traced_thread.h"

#include <elf.h>
#include <errno.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <thread>

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kLook{200};

#if defined(__x86_64__)
ThreadRegisters in_dwarf_order(const user_regs_struct& all) {
  return {.values = {all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8,
                     all.r9, all.r10, all.r11, all.r12, all.r13, all.r14, all.r15, all.rip},
          .pc = all.rip};
}
#elif defined(__aarch64__)
ThreadRegisters in_dwarf_order(const user_regs_struct& all) {
  ThreadRegisters registers{.values = {}, .pc = all.pc};
  for (int number = 0; number < 31; ++number) registers.values[number] = all.regs[number];
  registers.values[ThreadRegisters::kStackPointer] = all.sp;
  return registers;
}
#endif

}  // namespace

bool can_trace_threads() {
#if defined(__x86_64__) || defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

TracedThread::TracedThread(pid_t tid, std::chrono::steady_clock::time_point deadline) : tid_(tid) {
  error_ = hold(deadline);
}

// Seizing, unlike attaching, sends no signal, and shows a group that is stopped as such.
int TracedThread::hold(std::chrono::steady_clock::time_point deadline) {
  if (::ptrace(PTRACE_SEIZE, tid_, nullptr, nullptr) != 0) return errno;
  if (::ptrace(PTRACE_INTERRUPT, tid_, nullptr, nullptr) != 0) return errno;
  while (true) {
    int status = 0;
    const pid_t changed = ::waitpid(tid_, &status, __WALL | WNOHANG);
    if (changed < 0) return errno;
    if (changed == tid_ && !WIFSTOPPED(status)) return ESRCH;
    if (changed == tid_) {
      const bool by_us = status >> 16 == PTRACE_EVENT_STOP;
      signal_ = by_us ? 0 : WSTOPSIG(status);
      return 0;
    }
    if (std::chrono::steady_clock::now() > deadline) return ETIMEDOUT;
    std::this_thread::sleep_for(kLook);
  }
}

TracedThread::~TracedThread() {
  if (error_ != 0) return;
  ::ptrace(PTRACE_DETACH, tid_, nullptr, reinterpret_cast<void*>(std::intptr_t{signal_}));
}

std::optional<ThreadRegisters> TracedThread::registers() const {
#if defined(__x86_64__) || defined(__aarch64__)
  user_regs_struct all{};
  iovec place{.iov_base = &all, .iov_len = sizeof(all)};
  const auto kind = reinterpret_cast<void*>(std::intptr_t{NT_PRSTATUS});
  if (error_ != 0 || ::ptrace(PTRACE_GETREGSET, tid_, kind, &place) != 0) return std::nullopt;
  return in_dwarf_order(all);
#else
  return std::nullopt;
#endif
}

}  // namespace lockstep
