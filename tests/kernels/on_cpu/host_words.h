#pragma once

// What host code says to CUDA, for kernels that were translated (translate.py): the device here has
// two multiprocessors and a Hopper's shared memory. Each launch has another schedule than the last.

#include "tests/kernels/on_cpu/cuda_words.h"

#include <cstddef>
#include <functional>

#include "kernels/stream.h"

namespace lockstep::kernels::on_cpu {

/// Runs a kernel. Like CUDA it keeps an error for cudaGetLastError() where the device would refuse
/// the launch. Throws Failure where the kernel breaks its rules.
void start(dim3 blocks, int threads, std::size_t shared_bytes, Stream stream,
           const std::function<void()>& kernel);

/// A block's memory of that many bytes which has this key, and that which its launch asked for.
void* shared_at(const void* key, std::size_t bytes);
void* dynamic_shared();

/// A variable in shared memory. `Place` is another type for each.
template <class T, class Place>
T& shared(Place) {
  static const char key = 0;
  return *static_cast<T*>(shared_at(&key, sizeof(T)));
}
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared());
}

/// For all kernels; CUDA has it for each.
cudaError_t allow_shared(int bytes);

}  // namespace lockstep::kernels::on_cpu

// CUDA's own, which take a kernel of any type where nvcc compiles.
template <class... Arguments>
cudaError_t cudaFuncSetAttribute(void (*)(Arguments...), cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
  return lockstep::kernels::on_cpu::allow_shared(value);
}
template <class... Arguments>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Arguments...), int,
                                                          std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
