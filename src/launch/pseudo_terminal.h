#pragma once

#include "core/unique_fd.h"

namespace lockstep {

/// A terminal that exists for a program only: what it writes to `program_end` is read from
/// `our_end`, byte for byte.
struct PseudoTerminal {
  UniqueFd our_end;
  UniqueFd program_end;
};

/// With the window size of the terminal `like`. It becomes nobody's controlling terminal. Throws
/// SystemError where none can be had, as in a container without /dev/pts.
PseudoTerminal open_pseudo_terminal(int like);

/// Gives the terminal behind `our_end` the window size that `like` has now.
void copy_window_size(int like, int our_end);

}  // namespace lockstep
