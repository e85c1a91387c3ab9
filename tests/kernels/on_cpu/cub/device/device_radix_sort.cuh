#pragma once

// CUB's sort on a CPU, as far as kernels call it.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  /// Pairs that have the same key in bits [first_bit, last_bit) keep their order. Without scratch
  /// memory it only says how much it takes.
  template <class Key, class Value>
  static cudaError_t SortPairs(void* scratch, std::size_t& bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, int count, int first_bit,
                               int last_bit, cudaStream_t) {
    constexpr std::size_t kBytes = 1000;
    constexpr int kNothing = 0xff;
    if (scratch == nullptr) {
      bytes = kBytes;
      return cudaSuccess;
    }
    if (bytes < kBytes) return cudaErrorInvalidValue;
    // Whatever else lies there is lost.
    std::memset(scratch, kNothing, kBytes);
    const auto bits_of = [&](int i) {
      const auto key = static_cast<unsigned long long>(keys[i]);
      return (key & ((1ull << last_bit) - 1)) >> first_bit;
    };
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, bits_of);
    for (int i = 0; i < count; ++i) {
      sorted_keys[i] = keys[order[static_cast<std::size_t>(i)]];
      sorted_values[i] = values[order[static_cast<std::size_t>(i)]];
    }
    std::memset(scratch, kNothing, kBytes);
    return cudaSuccess;
  }
};

}  // namespace cub
