#include "tests/kernels/on_cpu/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace lockstep::kernels::on_cpu {

Stacks::Stacks(std::size_t count) : bytes_(count * kBytes) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<unsigned char*>(memory);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t i = 0; i < count; ++i) mprotect((*this)[i], page, PROT_NONE);
}

Stacks::~Stacks() {
  munmap(memory_, bytes_);
}

void prepare(Fiber& fiber, unsigned char* stack, void (*main)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = Stacks::kBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, main, 0);
}

}  // namespace lockstep::kernels::on_cpu
