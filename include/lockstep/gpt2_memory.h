#pragma once

#include <cstdint>

#include "lockstep/gpt2_config.h"
#include "lockstep/memory_plan.h"

namespace lockstep {

/// How a GPT-2 computes, as far as memory depends on it. A sample is a sequence.
struct Gpt2MemoryOptions {
  std::int64_t tokens = 1024;  // of a sequence
  int weight_bytes = 4;        // of an element of weights and of what flows between blocks
  int product_bytes = 4;       // of what products are made of; fewer than above under autocast
  bool dropout = true;         // while the configuration has any
  /// Labels that count are in rows of this size at the head (docs/gpt2.md, Labels).
  std::int64_t head_chunk_bytes = std::int64_t{8} << 20;
};

/// The sizes of a GPT-2 on ATen's operators, its blocks being the units, from its shape alone:
/// nothing of it is made.
ModelSizes gpt2_sizes(const Gpt2Config& config, const Gpt2MemoryOptions& options = {});

}  // namespace lockstep
