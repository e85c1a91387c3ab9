#pragma once

#include <cstdint>

#include "shm/element.h"

namespace lockstep {

/// A reduction without anything that a standard library would have to be asked for.
struct ReduceJob {
  ReduceSpec spec;
  const void* const* parts = nullptr;
  int part_count = 0;
  std::int64_t count = 0;
  void* out = nullptr;
  void* copy = nullptr;  // a second place for the result
};

/// The same loops, compiled for several instruction sets.
void reduce_portable(const ReduceJob& job);
#if defined(__x86_64__)
void reduce_avx2(const ReduceJob& job);
void reduce_avx512(const ReduceJob& job);
#endif

}  // namespace lockstep
