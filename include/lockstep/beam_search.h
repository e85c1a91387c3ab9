#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/transformer.h"

namespace lockstep {

struct SearchOptions {
  /// Sentences that are followed side by side; 1 is greedy: always the likeliest token.
  std::int64_t beam = 1;
  /// Sentences are ranked by log probability / ((5 + length) / 6)^length_penalty.
  double length_penalty = 0.6;
  /// With the mark of the end; 0: as many as the model has positions.
  std::int64_t max_tokens = 0;
  std::int32_t start_id = 2;
  std::int32_t end_id = 3;
  /// False: decode the whole sentence again for every token. The same tokens, slowly.
  bool use_cache = true;
};

struct Found {
  std::vector<std::int32_t> tokens = {};  // without marks of start and end
  double log_probability = 0;             // of all of them, and of the end
  bool ended = false;                     // false: max_tokens came first
};

/// The best target for each source that is found. A search is over when `beam` sentences have
/// ended, or none may become longer. What is found for a source does not depend on its neighbours,
/// but for rounding. Padding is never chosen. The model is put into evaluation mode for the time.
///
/// Throws InvalidArgument for an empty source, one that is too long for the model, a token outside
/// of its vocabulary and options out of range.
std::vector<Found> search_targets(Transformer& model,
                                  const std::vector<std::vector<std::int32_t>>& sources,
                                  const SearchOptions& options = {});

}  // namespace lockstep
