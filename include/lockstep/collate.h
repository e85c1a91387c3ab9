#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/tensor_walk.h"

namespace lockstep {

namespace detail {

using Indices = std::span<const std::int64_t>;

/// Throws InvalidArgument, naming the sample, when shapes, types or devices differ.
at::Tensor stack_samples(std::span<const at::Tensor* const> samples, Indices indices);
/// An uninitialised tensor on the CPU.
at::Tensor make_batch_tensor(std::initializer_list<std::int64_t> shape, at::ScalarType type);
[[noreturn]] void throw_unequal(Indices indices, std::size_t position, const std::string& what,
                                std::size_t length, std::size_t first_length);
[[noreturn]] void throw_missing_key(Indices indices, std::size_t position, const std::string& key);

/// The type in a tensor for a number: its own where tensors have it, otherwise int64.
template <typename T>
struct TensorNumber {
  using type = std::int64_t;
};
template <typename T>
requires std::floating_point<T> || std::same_as<T, bool> || std::same_as<T, std::uint8_t> ||
    (std::signed_integral<T> && !std::same_as<T, char>)struct TensorNumber<T> {
  using type = T;
};
template <>
struct TensorNumber<long double> {
  using type = double;
};
template <>
struct TensorNumber<long long> {
  using type = std::int64_t;
};

template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <typename T>
concept MapLike = requires(const T& map) {
  typename T::key_type;
  typename T::mapped_type;
  map.find(std::declval<typename T::key_type>());
};

template <typename T>
inline constexpr bool is_fixed_array = false;
template <typename T, std::size_t n>
inline constexpr bool is_fixed_array<std::array<T, n>> = true;
template <typename T>
inline constexpr bool is_vector = false;
template <typename T>
inline constexpr bool is_vector<std::vector<T>> = !std::is_same_v<T, bool>;

template <typename T>
std::string key_text(const T& key) {
  if constexpr (std::convertible_to<const T&, std::string_view>) {
    return std::string(std::string_view(key));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(key);
  } else {
    return "(a key)";
  }
}

// `value_of(i)` gives a reference to the i-th sample's value. Values are looked at where they are:
// only what ends up in a std::vector is moved out of the samples.
template <typename T, typename ValueOf>
auto collate_values(std::size_t count, ValueOf value_of, Indices indices);

template <typename T, typename ValueOf>
auto collate_numbers(std::size_t count, ValueOf value_of) {
  using Held = typename TensorNumber<T>::type;
  at::Tensor batch =
      make_batch_tensor({static_cast<std::int64_t>(count)}, c10::CppTypeToScalarType<Held>::value);
  auto* out = static_cast<Held*>(batch.mutable_data_ptr());
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<Held>(value_of(i));
  return batch;
}

template <typename T, typename ValueOf>
auto collate_sequences(std::size_t count, ValueOf value_of, Indices indices) {
  using Element = typename T::value_type;
  const std::size_t length = value_of(0).size();
  for (std::size_t i = 1; i < count; ++i) {
    if (value_of(i).size() != length)
      throw_unequal(indices, i, "elements", value_of(i).size(), length);
  }
  if constexpr (Number<Element>) {
    using Held = typename TensorNumber<Element>::type;
    at::Tensor batch =
        make_batch_tensor({static_cast<std::int64_t>(count), static_cast<std::int64_t>(length)},
                          c10::CppTypeToScalarType<Held>::value);
    auto* out = static_cast<Held*>(batch.mutable_data_ptr());
    for (std::size_t i = 0; i < count; ++i) {
      for (const Element& element : value_of(i)) *out++ = static_cast<Held>(element);
    }
    return batch;
  } else {
    const auto one = [&](std::size_t place) {
      return collate_values<Element>(
          count, [&value_of, place](std::size_t i) -> Element& { return value_of(i)[place]; },
          indices);
    };
    std::vector<decltype(one(0))> batch;
    batch.reserve(length);
    for (std::size_t place = 0; place < length; ++place) batch.push_back(one(place));
    return batch;
  }
}

template <typename T, typename ValueOf>
auto collate_maps(std::size_t count, ValueOf value_of, Indices indices) {
  using Key = typename T::key_type;
  using Value = typename T::mapped_type;
  const auto one = [&](const Key& key) {
    return collate_values<Value>(
        count, [&value_of, &key](std::size_t i) -> Value& { return value_of(i).find(key)->second; },
        indices);
  };
  using Collated = decltype(one(std::declval<const Key&>()));
  std::conditional_t < requires(T map) {
    map.bucket_count();
  }
  , std::unordered_map<Key, Collated>, std::map < Key, Collated >> batch;
  for (std::size_t i = 1; i < count; ++i) {
    for (const auto& [key, value] : value_of(0)) {
      if (!value_of(i).contains(key)) throw_missing_key(indices, i, key_text(key));
    }
    if (value_of(i).size() != value_of(0).size()) {
      throw_unequal(indices, i, "keys", value_of(i).size(), value_of(0).size());
    }
  }
  for (const auto& [key, value] : value_of(0)) batch.emplace(key, one(key));
  return batch;
}

// `tie(value)` gives a tuple of references to the members.
template <typename T, typename ValueOf, typename Tie>
auto collate_members(std::size_t count, ValueOf value_of, Indices indices, Tie tie) {
  using Members = decltype(tie(value_of(0)));
  return [&]<std::size_t... place>(std::index_sequence<place...>) {
    return std::tuple{collate_values<std::remove_cvref_t<std::tuple_element_t<place, Members>>>(
        count, [&](std::size_t i) -> decltype(auto) { return std::get<place>(tie(value_of(i))); },
        indices)...};
  }
  (std::make_index_sequence<std::tuple_size_v<Members>>{});
}

template <typename T, typename Members>
auto as_struct(Members&& members) {
  return std::apply([](auto&&... member) { return T{std::forward<decltype(member)>(member)...}; },
                    std::forward<Members>(members));
}

template <typename... Members>
auto plain_types(const std::tuple<Members...>&) -> std::tuple<std::remove_cvref_t<Members>...>;

template <typename T, typename ValueOf>
auto collate_values(std::size_t count, ValueOf value_of, Indices indices) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    std::vector<const at::Tensor*> tensors;
    tensors.reserve(count);
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(&value_of(i));
    return stack_samples(tensors, indices);
  } else if constexpr (Number<T>) {
    return collate_numbers<T>(count, value_of);
  } else if constexpr (MapLike<T>) {
    return collate_maps<T>(count, value_of, indices);
  } else if constexpr (is_vector<T> || is_fixed_array<T>) {
    return collate_sequences<T>(count, value_of, indices);
  } else if constexpr (TupleLike<T>) {
    const auto tie = [](T& value) {
      return std::apply([](auto&... member) { return std::tie(member...); }, value);
    };
    auto batch = collate_members<T>(count, value_of, indices, tie);
    if constexpr (requires(T pair) { pair.first; }) {
      return std::make_pair(std::get<0>(std::move(batch)), std::get<1>(std::move(batch)));
    } else {
      return batch;
    }
  } else if constexpr (!std::convertible_to<const T&, std::string_view> && !PointerLike<T> &&
                       SmallStruct<T>) {
    const auto tie = [](T& value) { return members(value); };
    auto batch = collate_members<T>(count, value_of, indices, tie);
    using Own = decltype(plain_types(members(std::declval<T&>())));
    if constexpr (std::is_same_v<decltype(batch), Own>) {
      return as_struct<T>(std::move(batch));
    } else {
      return batch;
    }
  } else {
    std::vector<T> batch;
    batch.reserve(count);
    for (std::size_t i = 0; i < count; ++i) batch.push_back(std::move(value_of(i)));
    return batch;
  }
}

}  // namespace detail

/// Makes a batch of samples, as Python's default_collate does:
///
/// | sample | batch |
/// |---|---|
/// | tensor | tensor with one dimension more, stacked |
/// | number, bool, enum | tensor of its type (unsigned ones: int64; uint8 stays) |
/// | vector or array of numbers of equal length | tensor, a row a sample |
/// | vector or array of others | vector of batches, an element a place |
/// | pair, tuple, map | the same of batches |
/// | struct of up to eight members | the struct, where all members are tensors; otherwise a tuple |
/// | string and anything else | vector |
///
/// Throws InvalidArgument, naming the sample, when samples do not fit together.
struct DefaultCollate {
  template <typename Sample>
  auto operator()(std::vector<Sample>& samples, std::span<const std::int64_t> indices) const {
    return detail::collate_values<Sample>(
        samples.size(), [&samples](std::size_t i) -> Sample& { return samples[i]; }, indices);
  }
};

}  // namespace lockstep
