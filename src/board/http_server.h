#pragma once

#include "board/board_access.h"

namespace lockstep {

/// Serves the page until SIGINT or SIGTERM. Prints one line with the address once it listens.
/// Throws InvalidArgument and SystemError. Returns the exit status.
int serve_board(const BoardOptions& options);

}  // namespace lockstep
