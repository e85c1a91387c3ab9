#pragma once

#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

/// What state.json holds for one part of a snapshot.
struct PartValues {
  nlohmann::json values = nlohmann::json::object();
  /// Names of tensors that are the same tensor as another, which alone is in the file.
  std::map<std::string, std::string> tied = {};
};

/// The content of state.json. JSON has no infinities and no NaN; those are listed beside the
/// values, so that they come back. Throws InvalidArgument for what JSON cannot hold otherwise.
std::string format_state_file(const std::map<std::string, PartValues>& parts);

/// The reverse. Throws InvalidArgument.
std::map<std::string, PartValues> parse_state_file(std::string_view text);

}  // namespace lockstep
