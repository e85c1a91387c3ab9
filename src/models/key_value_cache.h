#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Keys and values of the tokens that a model has seen, so that a further token costs one row
/// instead of the whole sequence. Rows of a batch may have sequences of different lengths.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys;    // [B, heads, capacity, head size]
    at::Tensor values;  // likewise
  };
  std::vector<Layer> layers;
  std::vector<std::int64_t> lengths;  // tokens seen, by row
};

/// How a block finds its past.
struct CachedAttention {
  KeyValueCache::Layer* layer = nullptr;
  at::Tensor positions;   // [B, T] where the new tokens go
  at::Tensor mask;        // [B, 1, T, span]: what each of them may look at
  std::int64_t span = 0;  // how much of the capacity is in use afterwards
};

}  // namespace lockstep
