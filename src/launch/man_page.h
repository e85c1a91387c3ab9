#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// The manual page lockstep-run(1) in man's own troff macros, for `man -l` or a package.
std::string man_page(std::string_view version);

}  // namespace lockstep
