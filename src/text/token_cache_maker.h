#pragma once

#include <string>

#include "lockstep/token_cache.h"

namespace lockstep {

/// The name of the folder of a cache: equal for equal content. Throws InvalidArgument for options
/// that cannot work.
std::string cache_name(const Tokenizer& tokenizer, const TextSource& source,
                       const TokenCacheOptions& options);

/// Makes the folder options.directory/name. Where another process was quicker, its folder stays.
void make_cache(const Tokenizer& tokenizer, const TextSource& source,
                const TokenCacheOptions& options, const std::string& name);

}  // namespace lockstep
