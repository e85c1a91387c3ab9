#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "lockstep/error.h"
#include "lockstep/random.h"

namespace lockstep {

namespace detail {

template <typename D>
concept ReadsWithRandom = requires(const D& dataset, std::int64_t index, Random& random) {
  dataset.get(index, random);
};
template <typename D>
concept ReadsWithGenerator = requires(const D& dataset, std::int64_t index,
                                      at::Generator& generator) {
  dataset.get(index, generator);
};
template <typename D>
concept ReadsPlainly = requires(const D& dataset, std::int64_t index) {
  dataset.get(index);
};

/// Calls the get() that the dataset has.
template <typename D>
auto read_sample(const D& dataset, std::int64_t index, Random& random) {
  if constexpr (ReadsWithRandom<D>) {
    return dataset.get(index, random);
  } else if constexpr (ReadsWithGenerator<D>) {
    at::Generator generator = random.generator();
    return dataset.get(index, generator);
  } else {
    return dataset.get(index);
  }
}

template <typename T>
struct Unshared {
  using type = T;
};
template <typename T>
struct Unshared<std::shared_ptr<T>> {
  using type = std::remove_const_t<T>;
};
/// D for a D, a reference to D or a shared_ptr to D.
template <typename T>
using unshared_t = typename Unshared<std::remove_cvref_t<T>>::type;

template <typename T>
inline constexpr bool is_shared_pointer = !std::is_same_v<unshared_t<T>, std::remove_cvref_t<T>>;

/// Shares without copying: a shared_ptr is kept, a temporary moved, anything else referred to.
template <typename T>
auto share(T&& value) {
  using Held = std::remove_reference_t<T>;
  if constexpr (is_shared_pointer<T>) {
    if (!value) throw InvalidArgument("the dataset is a null pointer");
    return value;
  } else if constexpr (std::is_lvalue_reference_v<T>) {
    return std::shared_ptr<Held>(std::addressof(value), [](const void*) {});
  } else {
    return std::make_shared<Held>(std::move(value));
  }
}

[[noreturn]] void throw_bad_index(const char* dataset, std::int64_t index, std::int64_t size);
void check_same_length(std::span<const at::Tensor> tensors);
at::Tensor select_sample(const at::Tensor& tensor, std::int64_t index);
at::Tensor select_batch(const at::Tensor& tensor, std::span<const std::int64_t> indices);

}  // namespace detail

/// What a Loader reads by index: `std::int64_t size() const` and `get(std::int64_t index) const`.
///
/// Where a sample is made with randomness, `get(index, Random&) const` or
/// `get(index, at::Generator&) const` is called instead; its numbers depend on the loader's seed,
/// the epoch and the index alone, so they are the same on any rank and worker. Several threads call
/// get() at a time.
template <typename D>
concept Dataset = requires(const D& dataset) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
}
&&(detail::ReadsPlainly<D> || detail::ReadsWithRandom<D> || detail::ReadsWithGenerator<D>);

template <Dataset D>
using sample_t = decltype(detail::read_sample(std::declval<const D&>(), std::int64_t{},
                                              std::declval<Random&>()));

/// A dataset that gives a whole batch, collated, faster than sample by sample.
template <typename D>
concept BatchDataset = Dataset<D> &&
    requires(const D& dataset, std::span<const std::int64_t> indices) {
  dataset.get_batch(indices);
};

/// Tensors side by side: sample i is row i of each. One tensor gives a tensor, more give a tuple.
///
///     TensorDataset dataset(inputs, targets);
///     Loader loader(dataset, {.batch_size = 32});
///     for (auto& [x, y] : loader.epoch(0)) ...
template <std::size_t count>
class TensorDataset {
 public:
  /// Throws InvalidArgument when the tensors have no rows or unequal numbers of them.
  template <std::same_as<at::Tensor>... Tensors>
  explicit TensorDataset(Tensors... tensors) : tensors_{std::move(tensors)...} {
    detail::check_same_length(tensors_);
  }

  std::int64_t size() const { return tensors_[0].size(0); }

  auto get(std::int64_t index) const {
    if (index < 0 || index >= size()) detail::throw_bad_index("TensorDataset", index, size());
    return apply([index](const at::Tensor& t) { return detail::select_sample(t, index); });
  }

  auto get_batch(std::span<const std::int64_t> indices) const {
    return apply([indices](const at::Tensor& t) { return detail::select_batch(t, indices); });
  }

 private:
  template <typename Take>
  auto apply(Take take) const {
    if constexpr (count == 1) {
      return take(tensors_[0]);
    } else {
      return std::apply([&](const auto&... tensor) { return std::make_tuple(take(tensor)...); },
                        tensors_);
    }
  }

  std::array<at::Tensor, count> tensors_;
};
template <typename... Tensors>
TensorDataset(Tensors...) -> TensorDataset<sizeof...(Tensors)>;

/// Some samples of another dataset, which is referred to where it is an lvalue.
template <Dataset D>
class Subset {
 public:
  template <typename Source>
  Subset(Source&& dataset, std::vector<std::int64_t> indices)
      : dataset_(detail::share(std::forward<Source>(dataset))), indices_(std::move(indices)) {
    for (const std::int64_t index : indices_) {
      if (index < 0 || index >= dataset_->size()) {
        detail::throw_bad_index("Subset", index, dataset_->size());
      }
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }

  auto get(std::int64_t index, Random& random) const {
    return detail::read_sample(*dataset_, indices_.at(index), random);
  }

  auto get_batch(std::span<const std::int64_t> indices) const requires BatchDataset<D> {
    std::vector<std::int64_t> inner;
    inner.reserve(indices.size());
    for (const std::int64_t index : indices) inner.push_back(indices_.at(index));
    return dataset_->get_batch(std::span<const std::int64_t>(inner));
  }

 private:
  std::shared_ptr<const D> dataset_;
  std::vector<std::int64_t> indices_;
};
template <typename Source>
Subset(Source&&, std::vector<std::int64_t>) -> Subset<detail::unshared_t<Source>>;

/// One dataset after the other. They are of one type; lvalues are referred to.
template <Dataset D>
class Concat {
 public:
  template <typename... Sources>
  explicit Concat(Sources&&... parts)
      : parts_{std::shared_ptr<const D>(detail::share(std::forward<Sources>(parts)))...} {
    for (const auto& part : parts_) ends_.push_back(size() + part->size());
  }

  std::int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  auto get(std::int64_t index, Random& random) const {
    if (index < 0 || index >= size()) detail::throw_bad_index("Concat", index, size());
    const auto part = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const std::int64_t first = part == 0 ? 0 : ends_[part - 1];
    return detail::read_sample(*parts_[part], index - first, random);
  }

 private:
  std::vector<std::shared_ptr<const D>> parts_;
  std::vector<std::int64_t> ends_;
};
template <typename First, typename... Rest>
Concat(First&&, Rest&&...) -> Concat<detail::unshared_t<First>>;

/// Another dataset with every sample passed through `transform(sample)` or
/// `transform(sample, Random&)`. Several threads call it at a time.
template <Dataset D, typename Transform>
class Mapped {
 public:
  template <typename Source>
  Mapped(Source&& dataset, Transform transform)
      : dataset_(detail::share(std::forward<Source>(dataset))), transform_(std::move(transform)) {}

  std::int64_t size() const { return dataset_->size(); }

  auto get(std::int64_t index, Random& random) const {
    auto sample = detail::read_sample(*dataset_, index, random);
    if constexpr (std::invocable<const Transform&, decltype(sample), Random&>) {
      return transform_(std::move(sample), random);
    } else {
      return transform_(std::move(sample));
    }
  }

 private:
  std::shared_ptr<const D> dataset_;
  Transform transform_;
};
template <typename Source, typename Transform>
Mapped(Source&&, Transform) -> Mapped<detail::unshared_t<Source>, Transform>;

}  // namespace lockstep
