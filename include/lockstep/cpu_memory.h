#pragma once

#include <cstdint>

namespace lockstep {

/// From now on, what a tensor on the CPU frees is kept for a later one of about its size. Otherwise
/// it may go back to the system, which hands it out again page by page and filled with zeros: in
/// each step of a training run on the CPU, where that takes up to a seventh of the time.
///
/// For the start of main(): it holds for the whole process until its end, and calling it again does
/// nothing. Not more is kept than was in use at once, so a process takes at most twice its peak.
void reuse_cpu_memory();

/// What reuse_cpu_memory() has done so far; zeros where it was not called.
struct CpuMemory {
  std::uint64_t in_use_bytes = 0;
  std::uint64_t peak_bytes = 0;  // of in_use_bytes
  std::uint64_t kept_bytes = 0;  // of tensors that are gone
  /// What tensors have asked for, without what blocks are rounded up by.
  std::uint64_t tensor_bytes = 0;
  std::uint64_t peak_tensor_bytes = 0;  // since the last reset_cpu_memory_peak()
};
CpuMemory cpu_memory();

/// Begins to look for the peak of tensor_bytes anew, as before a step that is to be measured.
void reset_cpu_memory_peak();

}  // namespace lockstep
