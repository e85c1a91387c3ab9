#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace at {
class Tensor;
}

/// Finds the tensors inside any value, so that DistributedDataParallel can wrap a forward of any
/// signature: tensors, std::optional, std::pair, std::tuple, std::variant, smart pointers, ranges
/// (vectors, arrays, maps) and plain structs of up to eight members, nested as you like.
///
/// For a type that is none of these, write beside it
///     template <typename F> void for_each_tensor(MyOutput& value, F&& visit) {
///     visit(value.logits); }
/// and it is found by its namespace.
namespace lockstep::detail {

struct Anything {
  template <typename T>
  operator T() const;  // only named in unevaluated contexts
};

template <typename T, typename... Fields>
consteval std::size_t field_count() {
  if constexpr (sizeof...(Fields) > 8) {
    return 9;
  } else if constexpr (requires { T{Fields{}..., Anything{}}; }) {
    return field_count<T, Fields..., Anything>();
  } else {
    return sizeof...(Fields);
  }
}

// A reference_wrapper-free way to give a struct's members as a tuple of references.
template <typename T>
auto members(T& value) {
  constexpr std::size_t count = field_count<std::remove_cv_t<T>>();
  if constexpr (count == 0) {
    return std::tie();
  } else if constexpr (count == 1) {
    auto& [a] = value;
    return std::tie(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = value;
    return std::tie(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = value;
    return std::tie(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = value;
    return std::tie(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = value;
    return std::tie(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = value;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    return std::tie(a, b, c, d, e, f, g);
  } else {
    auto& [a, b, c, d, e, f, g, h] = value;
    return std::tie(a, b, c, d, e, f, g, h);
  }
}

template <typename T>
concept SmallStruct =
    std::is_aggregate_v<T> && !std::is_array_v<T> && !std::is_union_v<T> && field_count<T>() <= 8;

template <typename T>
inline constexpr bool always_false = false;

template <typename T>
concept HoldsNoTensor = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_null_pointer_v<T> ||
    std::is_pointer_v<T> || std::is_same_v<T, std::monostate> ||
    std::is_same_v<T, std::nullopt_t> || std::convertible_to<const T&, std::string_view>;

template <typename T>
concept PointerLike = !HoldsNoTensor<T> && requires(T & value) {
  *value;
  static_cast<bool>(value);
  requires !std::is_function_v<std::remove_reference_t<decltype(*value)>>;  // a lambda
};

// A path's elements are paths: such a range has no bottom.
template <typename T>
concept ProperRange = std::ranges::range<T> &&
    !std::is_same_v<std::remove_cv_t<T>, std::remove_cvref_t<std::ranges::range_reference_t<T>>>;

template <typename T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

/// Calls `visit(at::Tensor&)` (const where the value is) for every tensor inside `value`. With
/// `strict`, a type that cannot be looked into does not compile; otherwise it is passed over.
template <bool strict, typename Value, typename Visit>
void walk_tensors(Value& value, Visit& visit) {
  using T = std::remove_cv_t<Value>;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (requires { for_each_tensor(value, visit); }) {
    for_each_tensor(value, visit);
  } else if constexpr (HoldsNoTensor<T>) {
    // nothing inside
  } else if constexpr (requires { std::variant_size<T>::value; }) {
    std::visit([&](auto& held) { walk_tensors<strict>(held, visit); }, value);
  } else if constexpr (ProperRange<Value>) {
    for (auto&& item : value) walk_tensors<strict>(item, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... held) { (walk_tensors<strict>(held, visit), ...); }, value);
  } else if constexpr (PointerLike<T>) {
    if (value) walk_tensors<strict>(*value, visit);
  } else if constexpr (SmallStruct<T>) {
    std::apply([&](auto&... held) { (walk_tensors<strict>(held, visit), ...); }, members(value));
  } else if constexpr (strict) {
    static_assert(always_false<T>,
                  "lockstep cannot find the tensors in what this forward returns: write a free "
                  "function for_each_tensor(value, visit) beside its type (structs of up to eight "
                  "members need none)");
  }
}

}  // namespace lockstep::detail
