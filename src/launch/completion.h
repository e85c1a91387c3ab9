#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launch/manual_text.h"

namespace lockstep {

/// A script that teaches a shell ("bash", "zsh" or "fish") to complete the command line of
/// lockstep: the commands (name and one line each), and for run and launch the options, their
/// values and files. `more` has, for other commands by name, their own commands and their options,
/// with blanks between, a '=' behind those that take a value. Throws InvalidArgument for another
/// shell.
std::string completion_script(std::string_view shell, std::span<const Entry> commands,
                              std::span<const Entry> more = {});

}  // namespace lockstep
