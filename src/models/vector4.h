#pragma once

#include <cstring>

namespace lockstep {

/// A register of NEON or SSE. Arithmetic on it is the compiler's own.
using Vector4 = float __attribute__((vector_size(16)));

[[gnu::always_inline]] inline Vector4 load4(const float* from) {
  Vector4 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

[[gnu::always_inline]] inline void store4(float* to, Vector4 value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace lockstep
