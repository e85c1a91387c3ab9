#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::kernels::on_cpu {

/// Something that the device does on its own, once.
struct Work {
  std::function<void()> does;
  bool is_load = false;
  bool done = false;

  void happen() {
    if (done) return;
    done = true;
    does();
    does = nullptr;
  }
};
using Works = std::vector<std::shared_ptr<Work>>;

/// What a thread waits for, in words for a deadlock's report.
struct Wait {
  enum class Kind { nothing, collective, barrier, named_barrier, cluster };
  Kind kind = Kind::nothing;
  const char* call = "";
  unsigned place = 0;   // a barrier's address or number
  unsigned detail = 0;  // its parity, or how many threads it is for

  bool operator==(const Wait&) const = default;
};

/// One thread of a kernel.
struct Fiber {
  int block = 0;  // in its cluster
  int thread = 0;
  ucontext_t context;
  Wait wait;
  bool ended = false;

  Works open_stores;             // of the group that is not ended
  std::vector<Works> stores;     // groups, the oldest first
  std::vector<unsigned> hidden;  // 16 bytes each that it wrote, and copies may not see yet

  int warp() const { return thread / 32; }
};

/// Stacks for threads. Each begins with a page that cannot be touched; the others take memory only
/// once they are.
class Stacks {
 public:
  static constexpr std::size_t kBytes = 256 << 10;

  explicit Stacks(std::size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  unsigned char* operator[](std::size_t i) const { return memory_ + i * kBytes; }

 private:
  unsigned char* memory_ = nullptr;
  std::size_t bytes_;
};

/// Makes it begin with `main`, which never returns, on a stack of Stacks.
void prepare(Fiber& fiber, unsigned char* stack, void (*main)());

}  // namespace lockstep::kernels::on_cpu
