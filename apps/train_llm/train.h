#pragma once

#include "command_line.h"

namespace train_llm {

/// Trains in this process, as a rank of its job. Returns the exit code.
int train(const Invocation& invocation);

}  // namespace train_llm
