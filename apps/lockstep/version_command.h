#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The answer to `lockstep --version` and, with --json, one JSON document: the version, the commit
/// where it is known, what is built in, and of which torch the library beside it is. Throws
/// InvalidArgument for other words.
std::string version_text(std::string_view version, const std::vector<std::string>& arguments);
