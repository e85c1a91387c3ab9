#pragma once

#include <string>

#include "lockstep/token_cache.h"

namespace lockstep {

/// The name of the folder of a cache: equal for equal content. Throws InvalidArgument for options
/// that cannot work.
std::string cache_name(const Tokenizer& tokenizer, const TextSource& source,
                       const TokenCacheOptions& options);

/// Begins the name of a folder that is no cache yet, or no more; a process's number follows.
/// make_cache() removes those of processes of this machine that are gone.
std::string leftover_prefix();

/// Makes the folder options.directory/name. Where another process was quicker, its folder stays.
void make_cache(const Tokenizer& tokenizer, const TextSource& source,
                const TokenCacheOptions& options, const std::string& name);

}  // namespace lockstep
