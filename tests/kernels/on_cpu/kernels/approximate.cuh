#pragma once

// Functions that the device computes to some 22 bits, on a CPU.

#include "tests/kernels/on_cpu/cuda_words.h"

#include <cfloat>
#include <cmath>

namespace lockstep::kernels {

// What is too small for a normal float32 is 0, before and after.
inline float without_subnormals(float value) {
  return std::fabs(value) < FLT_MIN ? std::copysign(0.0f, value) : value;
}
inline float power_of_two(float exponent) {
  return without_subnormals(std::exp2(without_subnormals(exponent)));
}
inline float reciprocal(float value) {
  return without_subnormals(1.0f / without_subnormals(value));
}

}  // namespace lockstep::kernels
