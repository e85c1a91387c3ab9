#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// Types of numbers that can be reduced.
enum class ElementType : std::uint8_t {
  boolean,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};

enum class ReduceOperator : std::uint8_t {
  sum,
  product,
  min,
  max,
  bit_and,
  bit_or,
  bit_xor,
};

const char* name_of(ElementType type);
const char* name_of(ReduceOperator op);
std::size_t bytes_of(ElementType type);
bool is_floating(ElementType type);

/// What is done with the elements of the ranks.
struct ReduceSpec {
  ElementType type = ElementType::float32;
  ReduceOperator op = ReduceOperator::sum;
  double divisor = 1;  // of a sum: numbers of a floating type are divided, integers rounded down
};

}  // namespace lockstep
