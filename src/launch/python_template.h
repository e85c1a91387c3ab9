#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {

/// Python's string.Template(text).safe_substitute(values): $name and ${name} become their values,
/// $$ becomes $, and everything else, unknown names included, stays as it is.
std::string substitute(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& values);

}  // namespace lockstep
