#pragma once

// What device code says that only nvcc knows, for another compiler. Before all other headers of
// kernels.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>

// CUDA's own names, which are not ours to choose.
#define __launch_bounds__(...)

// Of the thread that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);

namespace lockstep::kernels::on_cpu {

/// Every lane's value to every lane of the warp: `bits` becomes that of lane `from`.
void exchange(const char* call, unsigned mask, unsigned& bits, int from);
int lane();

template <class To, class From>
To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace lockstep::kernels::on_cpu

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  using namespace lockstep::kernels::on_cpu;
  auto bits = same_bits<unsigned>(value);
  exchange("__shfl_sync()", mask, bits, from % 32);
  return same_bits<T>(bits);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  using namespace lockstep::kernels::on_cpu;
  auto bits = same_bits<unsigned>(value);
  exchange("__shfl_xor_sync()", mask, bits, (lane() ^ distance) % 32);
  return same_bits<T>(bits);
}

inline float __uint_as_float(unsigned bits) {
  return lockstep::kernels::on_cpu::same_bits<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return lockstep::kernels::on_cpu::same_bits<unsigned>(value);
}

inline int min(int a, int b) {
  return a < b ? a : b;
}
inline float rsqrtf(float value) {
  return 1.0f / std::sqrt(value);
}

// Past a cache or through it: here there is none.
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, T value) {
  *at = value;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
