#pragma once

#include <span>

#include "options.h"
#include "program_options/option_spec.h"

namespace translate {

/// Bits, so that an option can say which commands know it.
enum class Command : unsigned { train = 1, infer = 2 };

std::span<const program_options::OptionSpec> all_options();

}  // namespace translate
