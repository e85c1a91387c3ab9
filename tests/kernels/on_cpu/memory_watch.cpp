#include "tests/kernels/on_cpu/memory_watch.h"

#include <cstdint>

#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

// On the stack of the kernel's thread, which is given up.
void stop_thread(int, siginfo_t* info, void*) {
  fail(words("touches memory that is not the kernel's, at ",
             hex(reinterpret_cast<std::uintptr_t>(info->si_addr))));
}

}  // namespace

MemoryWatch::MemoryWatch() {
  struct sigaction action = {};
  action.sa_sigaction = stop_thread;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before_);
}

MemoryWatch::~MemoryWatch() {
  sigaction(SIGSEGV, &before_, nullptr);
}

}  // namespace lockstep::kernels::on_cpu
