#pragma once

#include "options.h"

namespace translate {

/// Trains in this process, as a rank of its job. Returns the exit code.
int train(const Options& options);

}  // namespace translate
