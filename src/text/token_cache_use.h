#pragma once

#include <memory>
#include <string>

#include "core/unique_fd.h"
#include "lockstep/token_cache.h"

namespace lockstep {

/// Says that the cache in this folder is in use, for as long as what it returns lives, and that it
/// was used now. Throws InvalidArgument for a cache that is being removed.
std::shared_ptr<const UniqueFd> begin_use(const std::string& folder);

/// Removes caches of a directory, those first that were not used for longest, until the rest takes
/// no more than options.max_bytes. Those in use stay, whatever they take, and so does `newest`.
/// What cannot be removed is left, without an error: nobody's run depends on it.
void remove_old_caches(const TokenCacheOptions& options, const std::string& newest);

}  // namespace lockstep
