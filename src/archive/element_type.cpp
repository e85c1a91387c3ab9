#include "archive/element_type.h"

#include <array>
#include <limits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// In the order of the enumeration.
constexpr std::array<ElementTypeNames, 20> kTypes{{
    {ElementType::boolean, 1, "BOOL", "bool", "BoolStorage"},
    {ElementType::uint8, 1, "U8", "uint8", "ByteStorage"},
    {ElementType::int8, 1, "I8", "int8", "CharStorage"},
    {ElementType::uint16, 2, "U16", "uint16", ""},
    {ElementType::int16, 2, "I16", "int16", "ShortStorage"},
    {ElementType::uint32, 4, "U32", "uint32", ""},
    {ElementType::int32, 4, "I32", "int32", "IntStorage"},
    {ElementType::uint64, 8, "U64", "uint64", ""},
    {ElementType::int64, 8, "I64", "int64", "LongStorage"},
    {ElementType::float16, 2, "F16", "float16", "HalfStorage"},
    {ElementType::bfloat16, 2, "BF16", "bfloat16", "BFloat16Storage"},
    {ElementType::float32, 4, "F32", "float32", "FloatStorage"},
    {ElementType::float64, 8, "F64", "float64", "DoubleStorage"},
    {ElementType::complex64, 8, "C64", "complex64", "ComplexFloatStorage"},
    {ElementType::complex128, 16, "", "complex128", "ComplexDoubleStorage"},
    {ElementType::float8_e4m3fn, 1, "F8_E4M3", "float8_e4m3fn", ""},
    {ElementType::float8_e5m2, 1, "F8_E5M2", "float8_e5m2", ""},
    {ElementType::float8_e4m3fnuz, 1, "F8_E4M3FNUZ", "float8_e4m3fnuz", ""},
    {ElementType::float8_e5m2fnuz, 1, "F8_E5M2FNUZ", "float8_e5m2fnuz", ""},
    {ElementType::float8_e8m0fnu, 1, "F8_E8M0", "float8_e8m0fnu", ""},
}};

std::optional<ElementType> find(std::string_view ElementTypeNames::*field, std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const ElementTypeNames& each : kTypes) {
    if (each.*field == name) return each.type;
  }
  return std::nullopt;
}

}  // namespace

std::span<const ElementTypeNames> element_types() {
  return kTypes;
}

const ElementTypeNames& names_of(ElementType type) {
  return kTypes.at(static_cast<std::size_t>(type));
}

std::optional<ElementType> element_type_of_safetensors(std::string_view name) {
  return find(&ElementTypeNames::safetensors, name);
}
std::optional<ElementType> element_type_of_torch(std::string_view name) {
  return find(&ElementTypeNames::torch, name);
}
std::optional<ElementType> element_type_of_storage(std::string_view name) {
  return find(&ElementTypeNames::storage, name);
}

std::optional<std::uint64_t> bytes_of(ElementType type, std::span<const std::int64_t> shape) {
  bool empty = false;
  std::uint64_t bytes = names_of(type).bytes;
  for (const std::int64_t length : shape) {
    if (length < 0) return std::nullopt;
    if (length == 0) empty = true;
    // An empty tensor may have any other dimensions; their product need not fit.
    if (empty) continue;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(length), &bytes) ||
        bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
  }
  // A zero may come after dimensions that did not fit; those are refused above, as torch does.
  return empty ? 0 : bytes;
}

std::string describe(ElementType type, std::span<const std::int64_t> shape) {
  std::string text = concat(names_of(type).torch, "[");
  for (std::size_t i = 0; i < shape.size(); ++i) text += concat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

}  // namespace lockstep
