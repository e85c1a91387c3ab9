#pragma once

#include <nlohmann/json.hpp>

namespace lockstep {

/// {"model": {"layers": 2}} as {"model.layers": 2}: numbers, truths and texts by name. Lists become
/// texts; nulls are left out.
nlohmann::json flat_config(const nlohmann::json& config);

}  // namespace lockstep
