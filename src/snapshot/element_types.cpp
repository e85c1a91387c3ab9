#include "snapshot/element_types.h"

#include <array>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using c10::ScalarType;

constexpr std::array<std::pair<ElementType, ScalarType>, 20> kPairs{{
    {ElementType::boolean, ScalarType::Bool},
    {ElementType::uint8, ScalarType::Byte},
    {ElementType::int8, ScalarType::Char},
    {ElementType::uint16, ScalarType::UInt16},
    {ElementType::int16, ScalarType::Short},
    {ElementType::uint32, ScalarType::UInt32},
    {ElementType::int32, ScalarType::Int},
    {ElementType::uint64, ScalarType::UInt64},
    {ElementType::int64, ScalarType::Long},
    {ElementType::float16, ScalarType::Half},
    {ElementType::bfloat16, ScalarType::BFloat16},
    {ElementType::float32, ScalarType::Float},
    {ElementType::float64, ScalarType::Double},
    {ElementType::complex64, ScalarType::ComplexFloat},
    {ElementType::complex128, ScalarType::ComplexDouble},
    {ElementType::float8_e4m3fn, ScalarType::Float8_e4m3fn},
    {ElementType::float8_e5m2, ScalarType::Float8_e5m2},
    {ElementType::float8_e4m3fnuz, ScalarType::Float8_e4m3fnuz},
    {ElementType::float8_e5m2fnuz, ScalarType::Float8_e5m2fnuz},
    {ElementType::float8_e8m0fnu, ScalarType::Float8_e8m0fnu},
}};

}  // namespace

ElementType element_type_of(ScalarType type, const std::string& tensor) {
  for (const auto& [element, scalar] : kPairs) {
    if (scalar == type) return element;
  }
  throw InvalidArgument(concat("tensor '", tensor, "' is of type ", c10::toString(type),
                               ", which files cannot hold"));
}

ScalarType scalar_type_of(ElementType type) {
  for (const auto& [element, scalar] : kPairs) {
    if (element == type) return scalar;
  }
  LOCKSTEP_CHECK(false, "element type ", static_cast<int>(type));
  return ScalarType::Undefined;
}

}  // namespace lockstep
