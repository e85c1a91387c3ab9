#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/process_group.h"

namespace lockstep {

/// Puts lists of names together of which each rank has some, as those of an optimizer's groups: the
/// i-th has what any rank has in its i-th, in the order of `order`. Every rank calls it. Where
/// ranks have different numbers of lists it throws InvalidArgument(complaint).
nlohmann::json join_name_lists(ProcessGroup group, const nlohmann::json& mine,
                               const std::vector<std::string>& order, const char* complaint);

}  // namespace lockstep
