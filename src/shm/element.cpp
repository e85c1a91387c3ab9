#include "shm/element.h"

namespace lockstep {

const char* name_of(ElementType type) {
  switch (type) {
    case ElementType::boolean:
      return "bool";
    case ElementType::int8:
      return "int8";
    case ElementType::uint8:
      return "uint8";
    case ElementType::int16:
      return "int16";
    case ElementType::uint16:
      return "uint16";
    case ElementType::int32:
      return "int32";
    case ElementType::uint32:
      return "uint32";
    case ElementType::int64:
      return "int64";
    case ElementType::uint64:
      return "uint64";
    case ElementType::float16:
      return "float16";
    case ElementType::bfloat16:
      return "bfloat16";
    case ElementType::float32:
      return "float32";
    case ElementType::float64:
      return "float64";
  }
  return "?";
}

const char* name_of(ReduceOperator op) {
  switch (op) {
    case ReduceOperator::sum:
      return "sum";
    case ReduceOperator::product:
      return "product";
    case ReduceOperator::min:
      return "min";
    case ReduceOperator::max:
      return "max";
    case ReduceOperator::bit_and:
      return "band";
    case ReduceOperator::bit_or:
      return "bor";
    case ReduceOperator::bit_xor:
      return "bxor";
  }
  return "?";
}

std::size_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::boolean:
    case ElementType::int8:
    case ElementType::uint8:
      return 1;
    case ElementType::int16:
    case ElementType::uint16:
    case ElementType::float16:
    case ElementType::bfloat16:
      return 2;
    case ElementType::int32:
    case ElementType::uint32:
    case ElementType::float32:
      return 4;
    default:
      return 8;
  }
}

bool is_floating(ElementType type) {
  return type == ElementType::float16 || type == ElementType::bfloat16 ||
         type == ElementType::float32 || type == ElementType::float64;
}

}  // namespace lockstep
