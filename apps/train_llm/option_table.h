#pragma once

#include <span>

#include "options.h"
#include "program_options/option_spec.h"

namespace train_llm {

/// Bits, so that an option can say which commands know it.
enum class Command : unsigned { train = 1, generate = 2, export_model = 4 };

using program_options::get_option;
using program_options::OptionSpec;

std::span<const OptionSpec> all_options();

}  // namespace train_llm
