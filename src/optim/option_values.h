#pragma once

#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/optimizer.h"

namespace lockstep {

std::string optimizer_type(const OptimizerOptions& options);

/// The optimizer's options with what the group sets in their place. Throws InvalidArgument for a
/// value out of range or an option that this kind of optimizer does not have.
OptimizerOptions options_of_group(const OptimizerOptions& defaults, const ParamGroup& group);

/// Throws InvalidArgument naming the option and its value.
void check_options(const OptimizerOptions& options);

/// Under Python's names, and back. Names that are missing keep the value of `current`; names that
/// are not options (Python's "foreach", "fused") are passed over.
nlohmann::json options_to_json(const OptimizerOptions& options);
OptimizerOptions options_from_json(const nlohmann::json& values, const OptimizerOptions& current);

/// Names of the tensors that a parameter's state may hold under these options.
std::vector<std::string> state_keys(const OptimizerOptions& options);

/// AdamW differs from Adam in one kernel, not in its options.
template <typename Options>
inline constexpr bool is_adam =
    std::is_same_v<Options, AdamOptions> || std::is_same_v<Options, AdamWOptions>;

}  // namespace lockstep
