#pragma once

#include <string>

#include "command_line.h"

namespace train_llm {

/// What --plan prints: the memory of a rank for the model and the options given, and with --memory
/// the stage and micro-batch that fit, with the command to use. Throws InvalidArgument, with the
/// least that would do, where nothing fits.
std::string plan_text(const Invocation& invocation);

}  // namespace train_llm
