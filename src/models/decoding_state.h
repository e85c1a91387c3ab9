#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/key_value_cache.h"

namespace lockstep {

/// What the decoder has seen so far, for rows that grow by a token at a time, all of one length.
struct DecodingState {
  std::vector<KeyValueCache::Layer> own;     // [B, heads, capacity, head size]
  std::vector<KeyValueCache::Layer> memory;  // [B, heads, S, head size]
  at::Tensor memory_mask;                    // [B, 1, 1, S]
  std::int64_t length = 0;                   // tokens so far

  /// From now on row i is what row rows[i] was. `same_memory`: each of these two has the same
  /// source, in the same place.
  void choose_rows(const at::Tensor& rows, bool same_memory) {
    const auto choose = [&](std::vector<KeyValueCache::Layer>& layers) {
      for (KeyValueCache::Layer& layer : layers) {
        layer.keys = layer.keys.index_select(0, rows);
        layer.values = layer.values.index_select(0, rows);
      }
    };
    choose(own);
    if (same_memory) return;
    choose(memory);
    memory_mask = memory_mask.index_select(0, rows);
  }
};

}  // namespace lockstep
