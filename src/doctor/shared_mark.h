#pragma once

#include <string>

#include "doctor/messages.h"

namespace lockstep {

/// Does what is asked with a file in the shared folder, to find out when nodes see what another
/// has written. Looks until the file is there with its text, or the time is over. May block.
MarkAnswer do_mark(const std::string& folder, const MarkQuestion& question);

}  // namespace lockstep
