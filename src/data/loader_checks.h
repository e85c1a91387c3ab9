#pragma once

#include "lockstep/loader_base.h"

namespace lockstep {

/// Both throw InvalidArgument for what cannot work.
void check_options(const LoaderOptions& options, bool is_stream);
void check_deal(const Deal& deal);

}  // namespace lockstep
