#include "comm/ordered_sum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements; sums of a block stay in the first-level cache

template <typename T>
using Inputs = std::vector<const T*>;

template <typename Sum>
struct Divide {
  Sum by;
  Sum operator()(Sum value) const { return value / by; }
};

// Dividing by a power of two and multiplying by its reciprocal give the same bits, and multiplying
// is several times faster.
template <typename Sum>
struct Scale {
  Sum by;
  Sum operator()(Sum value) const { return value * by; }
};

bool is_power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::frexp(value, &exponent) == 0.5;
}

template <typename T, typename Sum, typename Finish>
void mean_block(const Inputs<T>& inputs, std::int64_t begin, std::int64_t count, Finish finish,
                T* out) {
  std::array<Sum, kBlock> sums;
  const T* first = inputs[0] + begin;
  for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
  for (std::size_t slot = 1; slot < inputs.size(); ++slot) {
    const T* next = inputs[slot] + begin;
    for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<Sum>(next[i]);
  }
  for (std::int64_t i = 0; i < count; ++i) out[begin + i] = static_cast<T>(finish(sums[i]));
}

// The common case in one pass over memory.
template <typename T, typename Finish>
void mean_of_two(const T* a, const T* b, std::int64_t count, Finish finish, T* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = finish(a[i] + b[i]);
}

template <typename T, typename Sum, typename Finish>
void mean_with(const Inputs<T>& inputs, std::int64_t count, Finish finish, T* out) {
  if constexpr (std::is_same_v<T, Sum>) {
    if (inputs.size() == 2) return mean_of_two(inputs[0], inputs[1], count, finish, out);
  }
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    mean_block<T, Sum>(inputs, begin, std::min(kBlock, count - begin), finish, out);
  }
}

template <typename T, typename Sum>
void mean(const std::vector<const void*>& slots, std::int64_t count, double divisor, void* out) {
  T* result = static_cast<T*>(out);
  Inputs<T> inputs;
  inputs.reserve(slots.size());
  for (const void* slot : slots) inputs.push_back(static_cast<const T*>(slot));
  if (is_power_of_two(divisor)) {
    mean_with<T, Sum>(inputs, count, Scale<Sum>{static_cast<Sum>(1 / divisor)}, result);
  } else {
    mean_with<T, Sum>(inputs, count, Divide<Sum>{static_cast<Sum>(divisor)}, result);
  }
}

}  // namespace

void check_ordered_type(at::ScalarType type) {
  if (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf)
    return;
  throw InvalidArgument(concat("ordered reduction: gradients of type ", type,
                               " are not supported; use Reduction::native"));
}

void ordered_mean(at::ScalarType type, const std::vector<const void*>& slots, std::int64_t count,
                  double divisor, void* out) {
  check_ordered_type(type);
  switch (type) {
    case at::kFloat:
      return mean<float, float>(slots, count, divisor, out);
    case at::kDouble:
      return mean<double, double>(slots, count, divisor, out);
    case at::kBFloat16:
      return mean<at::BFloat16, float>(slots, count, divisor, out);
    default:
      return mean<at::Half, float>(slots, count, divisor, out);
  }
}

void ordered_mean(const std::vector<at::Tensor>& slots, double divisor, const at::Tensor& out) {
  std::vector<const void*> data;
  for (const auto& slot : slots) data.push_back(slot.const_data_ptr());
  ordered_mean(out.scalar_type(), data, out.numel(), divisor, out.mutable_data_ptr());
}

}  // namespace lockstep
