#pragma once

#include "command_line.h"

namespace translate {

/// Translates the sentences of the command line, or of standard input, a line each. Returns the
/// exit code.
int infer(const Invocation& invocation);

}  // namespace translate
