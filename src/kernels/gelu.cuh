#pragma once

#include "kernels/approximate.cuh"

namespace lockstep::kernels {

struct Bent {
  float value, slope;
};

/// GELU's tanh form and its derivative, by x * gate: the gate is 1 / (1 + exp(-2 u)), where u =
/// sqrt(2 / pi) * (x + 0.044715 x^3). So small values are as exact as large ones.
__device__ inline Bent gelu(float x) {
  constexpr float kRoot = 0.7978845608028654f, kCube = 0.044715f, kLog2 = 1.4426950408889634f;
  const float square = x * x;
  const float power =
      power_of_two(x * fmaf(-2.0f * kLog2 * kRoot * kCube, square, -2.0f * kLog2 * kRoot));
  const float gate = reciprocal(1.0f + power);
  const float inner = x * fmaf(6.0f * kCube * kRoot, square, 2.0f * kRoot);  // 2 x u'
  return {.value = x * gate, .slope = fmaf(gate, fmaf(-gate, inner, inner), gate)};
}

}  // namespace lockstep::kernels
