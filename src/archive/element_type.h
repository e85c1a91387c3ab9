#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Types of a tensor's elements that files can hold. All are stored in little-endian order.
enum class ElementType : std::uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
};

/// What files call an element type.
struct ElementTypeNames {
  ElementType type;
  std::size_t bytes;             // of one element
  std::string_view safetensors;  // "F32"; empty: the format has no such type
  std::string_view torch;        // "float32"
  std::string_view storage;      // "FloatStorage"; empty: torch.save names the type itself
};

std::span<const ElementTypeNames> element_types();
const ElementTypeNames& names_of(ElementType type);
std::optional<ElementType> element_type_of_safetensors(std::string_view name);
std::optional<ElementType> element_type_of_torch(std::string_view name);
std::optional<ElementType> element_type_of_storage(std::string_view name);

/// How many bytes a contiguous tensor takes; std::nullopt where a dimension is negative or the
/// number does not fit into 63 bits.
std::optional<std::uint64_t> bytes_of(ElementType type, std::span<const std::int64_t> shape);

/// "float32[3, 4]".
std::string describe(ElementType type, std::span<const std::int64_t> shape);

}  // namespace lockstep
