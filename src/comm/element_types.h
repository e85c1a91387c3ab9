#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "shm/element.h"

namespace lockstep {

/// What the loops over raw memory call a tensor's type; nothing for those that they do not reduce.
inline std::optional<ElementType> element_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return ElementType::boolean;
    case c10::ScalarType::Char:
      return ElementType::int8;
    case c10::ScalarType::Byte:
      return ElementType::uint8;
    case c10::ScalarType::Short:
      return ElementType::int16;
    case c10::ScalarType::UInt16:
      return ElementType::uint16;
    case c10::ScalarType::Int:
      return ElementType::int32;
    case c10::ScalarType::UInt32:
      return ElementType::uint32;
    case c10::ScalarType::Long:
      return ElementType::int64;
    case c10::ScalarType::UInt64:
      return ElementType::uint64;
    case c10::ScalarType::Half:
      return ElementType::float16;
    case c10::ScalarType::BFloat16:
      return ElementType::bfloat16;
    case c10::ScalarType::Float:
      return ElementType::float32;
    case c10::ScalarType::Double:
      return ElementType::float64;
    default:
      return std::nullopt;
  }
}

}  // namespace lockstep
