#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Finds out whether this thread draws random numbers of the CPU's generator, as it must not while
/// a CUDA graph is recorded: what is replayed has the numbers of then. Other threads, such as a
/// loader's, may draw.
///
/// Thread rule: one at a time in a thread.
class HostRandomWatch {
 public:
  HostRandomWatch();
  ~HostRandomWatch();
  HostRandomWatch(const HostRandomWatch&) = delete;
  HostRandomWatch& operator=(const HostRandomWatch&) = delete;

  /// The operator that drew first, such as "aten::uniform_"; empty: none has.
  const std::string& drawn_by() const { return drawn_by_; }

 private:
  std::string drawn_by_;
  std::uint64_t handle_;
};

}  // namespace lockstep
