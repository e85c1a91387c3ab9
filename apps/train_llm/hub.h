#pragma once

#include <string>
#include <vector>

#include "lockstep/environment.h"

namespace train_llm {

enum class HubKind { model, dataset };

/// The file or folder that a name stands for: the path of that name if there is one, else what the
/// hub's own tools have left in their cache for a name such as "openai-community/gpt2". Nothing is
/// fetched. Throws InvalidArgument, with the command that would fetch it.
std::string find_local(HubKind kind, const std::string& name,
                       const lockstep::Environment& environment);

/// Where lockstep keeps what it can make again: $XDG_CACHE_HOME/lockstep, else ~/.cache/lockstep.
/// Throws InvalidArgument when neither variable is there to say.
std::string default_cache_dir(const lockstep::Environment& environment);

}  // namespace train_llm
