#pragma once

#include <complex>
#include <cstddef>

#include "archive/element_type.h"

namespace lockstep {

/// One element as a number. Exact for all types but 64-bit integers beyond 2^53.
std::complex<double> element_value(ElementType type, const std::byte* element);

}  // namespace lockstep
