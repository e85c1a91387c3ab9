#pragma once

#include <string>

#include "text/token_part.h"

namespace lockstep {

/// The names in the folder of a cache.
inline constexpr const char* kCachePrefix = "tokens-";  // of the folder itself
inline constexpr const char* kCacheDescription = "cache.json";
inline constexpr const char* kTrainPart = "train.tokens";
inline constexpr const char* kValidationPart = "validation.tokens";

struct CacheDescription {
  BlockLayout layout;
  PartSummary train;
  PartSummary validation;
  std::string source;  // for people
};

std::string description_text(const CacheDescription& description);

/// Throws InvalidArgument with the file for a text that describes no cache that could exist.
CacheDescription parse_description(const std::string& text, const std::string& file);

}  // namespace lockstep
