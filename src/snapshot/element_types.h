#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "archive/element_type.h"

namespace lockstep {

/// Throws InvalidArgument, naming the tensor, for types that files cannot hold.
ElementType element_type_of(c10::ScalarType type, const std::string& tensor);

c10::ScalarType scalar_type_of(ElementType type);

}  // namespace lockstep
