#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/command_manual.h"

namespace lockstep {

/// The manual page lockstep-run(1) in man's own troff macros, for `man -l` or a package. `more` are
/// commands that have a section of their own.
std::string man_page(std::string_view version, std::span<const CommandManual> more = {});

}  // namespace lockstep
