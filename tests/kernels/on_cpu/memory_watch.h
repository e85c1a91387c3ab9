#pragma once

#include <csignal>

namespace lockstep::kernels::on_cpu {

/// While it lives, a kernel fails that touches memory which it may not, naming its thread.
class MemoryWatch {
 public:
  MemoryWatch();
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  struct sigaction before_;
};

}  // namespace lockstep::kernels::on_cpu
