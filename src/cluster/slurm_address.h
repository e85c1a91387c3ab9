#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Where Slurm itself reaches a node: the name or address that its configuration has for it, which
/// need not be the node's name. Asks `scontrol`, if there is one; std::nullopt without an answer.
std::optional<std::string> slurm_address_of(const std::string& node);

/// The field in what `scontrol --oneliner show node` prints.
std::optional<std::string> node_address_in(std::string_view text);

}  // namespace lockstep
