#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Makes the folder and those above it that are missing. Throws SystemError naming the folder, or
/// InvalidArgument if something else than a folder has that name.
void make_directories(const std::string& path);

/// Makes `parent`/`prefix`_XXXXXXXX, with eight random letters and digits, for this user alone, and
/// returns its path. Throws SystemError.
std::string make_unique_directory(const std::string& parent, std::string_view prefix);

/// `name` as one part of a path: slashes and unprintable characters become underscores, and a long
/// name is cut.
std::string as_file_name(std::string_view name);

}  // namespace lockstep
