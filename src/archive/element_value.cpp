#include "archive/element_value.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace lockstep {
namespace {

template <typename Number>
Number load(const std::byte* element) {
  Number number{};
  std::memcpy(&number, element, sizeof(Number));
  return number;
}

struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  enum class Special { ieee, finite, unsigned_zero } special;  // how infinities and NaN are written
};

double small_float(std::uint32_t bits, const SmallFloat& form) {
  using Special = SmallFloat::Special;
  const std::uint32_t mantissa = bits & ((1u << form.mantissa_bits) - 1);
  const std::uint32_t top = (1u << form.exponent_bits) - 1;
  const std::uint32_t exponent = bits >> form.mantissa_bits & top;
  const bool negative = bits >> (form.exponent_bits + form.mantissa_bits) & 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (form.special == Special::ieee && exponent == top) {
    if (mantissa != 0) return nan;
    return negative ? -std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::infinity();
  }
  if (form.special == Special::finite && exponent == top &&
      mantissa == (1u << form.mantissa_bits) - 1) {
    return nan;
  }
  if (form.special == Special::unsigned_zero && negative && exponent == 0 && mantissa == 0) {
    return nan;
  }
  const double fraction = std::ldexp(static_cast<double>(mantissa), -form.mantissa_bits);
  const double value = exponent == 0
                           ? std::ldexp(fraction, 1 - form.bias)
                           : std::ldexp(1 + fraction, static_cast<int>(exponent) - form.bias);
  return negative ? -value : value;
}

double real_value(ElementType type, const std::byte* element) {
  using Special = SmallFloat::Special;
  switch (type) {
    case ElementType::boolean:
    case ElementType::uint8:
      return load<std::uint8_t>(element);
    case ElementType::int8:
      return load<std::int8_t>(element);
    case ElementType::uint16:
      return load<std::uint16_t>(element);
    case ElementType::int16:
      return load<std::int16_t>(element);
    case ElementType::uint32:
      return load<std::uint32_t>(element);
    case ElementType::int32:
      return load<std::int32_t>(element);
    case ElementType::uint64:
      return static_cast<double>(load<std::uint64_t>(element));
    case ElementType::int64:
      return static_cast<double>(load<std::int64_t>(element));
    case ElementType::float16:
      return small_float(load<std::uint16_t>(element), {5, 10, 15, Special::ieee});
    case ElementType::bfloat16:
      return small_float(load<std::uint16_t>(element), {8, 7, 127, Special::ieee});
    case ElementType::float32:
      return load<float>(element);
    case ElementType::float64:
      return load<double>(element);
    case ElementType::float8_e4m3fn:
      return small_float(load<std::uint8_t>(element), {4, 3, 7, Special::finite});
    case ElementType::float8_e5m2:
      return small_float(load<std::uint8_t>(element), {5, 2, 15, Special::ieee});
    case ElementType::float8_e4m3fnuz:
      return small_float(load<std::uint8_t>(element), {4, 3, 8, Special::unsigned_zero});
    case ElementType::float8_e5m2fnuz:
      return small_float(load<std::uint8_t>(element), {5, 2, 16, Special::unsigned_zero});
    case ElementType::float8_e8m0fnu: {  // only an exponent
      const auto exponent = load<std::uint8_t>(element);
      return exponent == 0xff ? std::numeric_limits<double>::quiet_NaN()
                              : std::ldexp(1.0, exponent - 127);
    }
    case ElementType::complex64:
    case ElementType::complex128:
      break;
  }
  return 0;
}

}  // namespace

std::complex<double> element_value(ElementType type, const std::byte* element) {
  if (type == ElementType::complex64) {
    return {load<float>(element), load<float>(element + sizeof(float))};
  }
  if (type == ElementType::complex128) {
    return {load<double>(element), load<double>(element + sizeof(double))};
  }
  return real_value(type, element);
}

}  // namespace lockstep
