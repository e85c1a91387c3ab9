#pragma once

#include <string>

#include "launch/option_table.h"

namespace lockstep {

/// The answer to --help: every option of the command by group, then exit statuses and examples. No
/// line but an example is longer than 96 columns.
std::string help_text(LaunchCommand command);

}  // namespace lockstep
