#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tests/kernels/on_cpu/fiber.h"

namespace lockstep::kernels::on_cpu {

/// One product as a thread asks for it: 64 rows, 16 terms.
struct Product {
  int columns = 0;
  float* sums = nullptr;            // a thread's: half as many as there are columns
  const unsigned* pairs = nullptr;  // of a, where it is in registers: four
  std::uint64_t a = 0, b = 0;       // descriptors
  bool transposed_a = false, transposed_b = false;
  bool adds = false;

  /// But for what each thread has of its own.
  bool is_like(const Product& other) const;
};

/// Four warps that multiply together. They need not be at the same place at the same time, but say
/// the same things in the same order. A warp's quarter of a product may be computed as soon as that
/// warp has asked for it. A wait of any of them is for all four quarters.
///
/// All calls are of a whole warp, by one of its lanes.
class Group {
 public:
  static constexpr std::size_t kWarps = 4;

  void begin_products(std::size_t warp);
  void multiply(std::size_t warp, const Product& product, std::function<void()> compute);
  void end_products(std::size_t warp);
  void wait(std::size_t warp, unsigned groups);
  /// When a thread of that warp ends.
  void leave(std::size_t warp);

 private:
  struct Warp {
    unsigned calls = 0;       // so far
    std::deque<Works> ended;  // groups that were not waited for, the oldest first
    Works open;
    unsigned waited = 0;  // groups that were
    bool is_fenced = false, has_ended = false;
  };
  struct Call {
    const char* name;
    Product product;
    unsigned warps = 0;  // that have said it
  };

  unsigned say(std::size_t warp, const char* call, const Product& product = {});
  void wait_for_others(unsigned calls);
  static void compute_next(Warp& warp);

  std::array<Warp, kWarps> warps_;
  std::deque<Call> log_;  // what was not said by all yet
  unsigned first_of_log_ = 0;
  std::vector<Fiber*> waiting_;
};

}  // namespace lockstep::kernels::on_cpu
