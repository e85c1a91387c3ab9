#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shm/element.h"
#include "shm/float16_bits.h"
#include "shm/reduce_variants.h"

// Loops that compilers turn into vector instructions. Each source that includes them is compiled
// for another instruction set, so everything has internal linkage: the linker would otherwise keep
// one copy, for whatever processor.
namespace lockstep {
namespace {

constexpr std::int64_t kReduceBlock = 1024;  // elements; what is combined stays in the first cache

struct Bfloat16Bits {
  std::uint16_t bits;
};

#if defined(__aarch64__)
using Float16Bits = __fp16;
#else
struct Float16Bits {
  std::uint16_t bits;
};
#endif

// A number as it is combined, and back as it is stored.
template <typename T>
struct Stored {
  using Wide = T;
  static Wide load(T value) { return value; }
  static T store(Wide value) { return value; }
};

template <>
struct Stored<Bfloat16Bits> {
  using Wide = float;
  static float load(Bfloat16Bits value) {
    const std::uint32_t bits = std::uint32_t{value.bits} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
  }
  // To the nearest, ties to even; what is not a number stays none.
  static Bfloat16Bits store(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return {static_cast<std::uint16_t>(value != value ? 0x7fc0U : rounded)};
  }
};

template <>
struct Stored<Float16Bits> {
  using Wide = float;
#if defined(__aarch64__)
  static float load(Float16Bits value) {
    return static_cast<float>(value);
  }
  static Float16Bits store(float value) {
    return static_cast<Float16Bits>(value);
  }
#else
  static float load(Float16Bits value) {
    return float_of_half(value.bits);
  }
  static Float16Bits store(float value) {
    return {half_of_float(value)};
  }
#endif
};

// Whole numbers wrap around when they are too large, as in PyTorch; small types are computed in
// int.
template <typename T>
using Wrapping =
    std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct Add {
  template <typename T>
  static T combine(T a, T b) {
    using U = Wrapping<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  }
};
struct Multiply {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(int)) {
      // Two large numbers of 16 bits would overflow an int.
      return static_cast<T>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
    } else {
      using U = Wrapping<T>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    }
  }
};
struct Smaller {
  template <typename T>
  static T combine(T a, T b) {
    return b < a ? b : a;
  }
};
struct Larger {
  template <typename T>
  static T combine(T a, T b) {
    return a < b ? b : a;
  }
};
struct And {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

bool is_power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::frexp(value, &exponent) == 0.5;
}

template <typename Wide>
void divide_block(Wide* values, std::int64_t count, double divisor) {
  if (divisor == 1) return;
  if constexpr (std::is_floating_point_v<Wide>) {
    // Dividing by a power of two and multiplying by its reciprocal give the same bits, and
    // multiplying is several times faster.
    if (is_power_of_two(divisor)) {
      const Wide factor = static_cast<Wide>(1 / divisor);
      for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
    } else {
      const Wide by = static_cast<Wide>(divisor);
      for (std::int64_t i = 0; i < count; ++i) values[i] /= by;
    }
  } else {
    const auto by = static_cast<std::int64_t>(divisor);
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_signed_v<Wide>) {
        const std::int64_t value = values[i], rest = value % by;
        values[i] = static_cast<Wide>(value / by - (rest < 0 ? 1 : 0));
      } else {
        values[i] = static_cast<Wide>(values[i] / static_cast<std::uint64_t>(by));
      }
    }
  }
}

// `into` may be one of the inputs: then element i of it is read before it is written, which is all
// that vector instructions need (ivdep).
template <typename T, typename Combine>
void combine_block(const ReduceJob& job, std::int64_t begin, std::int64_t count,
                   typename Stored<T>::Wide* into) {
  const auto* const* parts = reinterpret_cast<const T* const*>(job.parts);
  const T* first = parts[0] + begin;
  if (job.part_count == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) into[i] = Stored<T>::load(first[i]);
    return;
  }
  const T* second = parts[1] + begin;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    into[i] = Combine::combine(Stored<T>::load(first[i]), Stored<T>::load(second[i]));
  }
  for (int part = 2; part < job.part_count; ++part) {
    const T* next = parts[part] + begin;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      into[i] = Combine::combine(into[i], Stored<T>::load(next[i]));
    }
  }
}

template <typename T, typename Combine>
void combine_parts(const ReduceJob& job) {
  using Wide = typename Stored<T>::Wide;
  // Where the result must not replace an input before all have been read, or is of another type.
  Wide buffer[kReduceBlock];
  for (std::int64_t begin = 0; begin < job.count; begin += kReduceBlock) {
    const std::int64_t count = job.count - begin < kReduceBlock ? job.count - begin : kReduceBlock;
    T* result = static_cast<T*>(job.out) + begin;
    if constexpr (std::is_same_v<T, Wide>) {
      if (job.part_count <= 2) {
        combine_block<T, Combine>(job, begin, count, result);
        divide_block(result, count, job.spec.divisor);
      } else {
        combine_block<T, Combine>(job, begin, count, buffer);
        divide_block(buffer, count, job.spec.divisor);
        std::memcpy(result, buffer, static_cast<std::size_t>(count) * sizeof(T));
      }
    } else {
      combine_block<T, Combine>(job, begin, count, buffer);
      divide_block(buffer, count, job.spec.divisor);
      for (std::int64_t i = 0; i < count; ++i) result[i] = Stored<T>::store(buffer[i]);
    }
    if (job.copy != nullptr) {  // while it is in the first cache
      std::memcpy(static_cast<T*>(job.copy) + begin, result,
                  static_cast<std::size_t>(count) * sizeof(T));
    }
  }
}

template <typename T>
void combine_by_operator(const ReduceJob& job) {
  switch (job.spec.op) {
    case ReduceOperator::sum:
      return combine_parts<T, Add>(job);
    case ReduceOperator::product:
      return combine_parts<T, Multiply>(job);
    case ReduceOperator::min:
      return combine_parts<T, Smaller>(job);
    case ReduceOperator::max:
      return combine_parts<T, Larger>(job);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (job.spec.op) {
      case ReduceOperator::bit_and:
        return combine_parts<T, And>(job);
      case ReduceOperator::bit_or:
        return combine_parts<T, Or>(job);
      default:
        return combine_parts<T, Xor>(job);
    }
  }
}

// A truth value is a byte of 0 or 1, and stays one: a sum means "any", a product "all".
void combine_booleans(const ReduceJob& job) {
  switch (job.spec.op) {
    case ReduceOperator::sum:
    case ReduceOperator::max:
    case ReduceOperator::bit_or:
      return combine_parts<std::uint8_t, Or>(job);
    case ReduceOperator::bit_xor:
      return combine_parts<std::uint8_t, Xor>(job);
    default:
      return combine_parts<std::uint8_t, And>(job);
  }
}

void reduce_by_type(const ReduceJob& job) {
  switch (job.spec.type) {
    case ElementType::boolean:
      return combine_booleans(job);
    case ElementType::int8:
      return combine_by_operator<std::int8_t>(job);
    case ElementType::uint8:
      return combine_by_operator<std::uint8_t>(job);
    case ElementType::int16:
      return combine_by_operator<std::int16_t>(job);
    case ElementType::uint16:
      return combine_by_operator<std::uint16_t>(job);
    case ElementType::int32:
      return combine_by_operator<std::int32_t>(job);
    case ElementType::uint32:
      return combine_by_operator<std::uint32_t>(job);
    case ElementType::int64:
      return combine_by_operator<std::int64_t>(job);
    case ElementType::uint64:
      return combine_by_operator<std::uint64_t>(job);
    case ElementType::float16:
      return combine_by_operator<Float16Bits>(job);
    case ElementType::bfloat16:
      return combine_by_operator<Bfloat16Bits>(job);
    case ElementType::float32:
      return combine_by_operator<float>(job);
    case ElementType::float64:
      return combine_by_operator<double>(job);
  }
}

}  // namespace
}  // namespace lockstep
