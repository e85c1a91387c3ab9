#pragma once

#include <memory>

#include "models/key_value_cache.h"

namespace lockstep {

struct Gpt2Config;
struct Gpt2Options;
class Gpt2Impl;

/// For weights that come from elsewhere.
std::shared_ptr<Gpt2Impl> make_uninitialised_gpt2(const Gpt2Config& config,
                                                  const Gpt2Options& options);

/// Where the tokens of `ids` [B, T] go, each row after what the cache has of it, and what they may
/// look at.
CachedAttention place_in_cache(const KeyValueCache& cache, const at::Tensor& ids);

/// A cache without content for `rows` sequences of up to `capacity` tokens.
KeyValueCache make_cache(const Gpt2Impl& model, std::int64_t rows, std::int64_t capacity);

}  // namespace lockstep
