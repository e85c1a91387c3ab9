#pragma once

// Functions that the device has an instruction for, to some 22 bits. Results that are too small for
// a normal float32 are 0.

namespace lockstep::kernels {

__device__ inline float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}
__device__ inline float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace lockstep::kernels
