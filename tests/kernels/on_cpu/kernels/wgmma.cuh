#pragma once

// src/kernels/wgmma.cuh on a CPU.

#include "kernels/hopper.cuh"

namespace lockstep::kernels {

template <bool kTransposedA, bool kTransposedB, int kSums>
void multiply(float (&sums)[kSums], std::uint64_t a, std::uint64_t b, int adds) {
  static_assert(kSums == 32 || kSums == 64 || kSums == 96);
  on_cpu::multiply({.columns = 2 * kSums,
                    .sums = sums,
                    .a = a,
                    .b = b,
                    .transposed_a = kTransposedA,
                    .transposed_b = kTransposedB,
                    .adds = adds != 0});
}

template <bool kTransposedB, int kSums>
void multiply(float (&sums)[kSums], const unsigned (&a)[4], std::uint64_t b, int adds) {
  static_assert(kSums == 32 || kSums == 64);
  on_cpu::multiply({.columns = 2 * kSums,
                    .sums = sums,
                    .pairs = a,
                    .b = b,
                    .transposed_b = kTransposedB,
                    .adds = adds != 0});
}

}  // namespace lockstep::kernels
