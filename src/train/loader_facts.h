#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/loader_base.h"

namespace lockstep {

/// What a resumed run must find again for its steps to be the same.
inline nlohmann::json facts_of(const LoaderBase& data) {
  const LoaderOptions& options = data.options();
  nlohmann::json facts = {{"batch_size", options.batch_size},
                          {"shuffle", options.shuffle},
                          {"drop_last", options.drop_last},
                          {"seed", options.seed}};
  if (const auto samples = data.samples_per_epoch()) facts["samples_per_epoch"] = *samples;
  return facts;
}

}  // namespace lockstep
