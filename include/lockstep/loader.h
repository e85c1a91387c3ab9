#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "lockstep/collate.h"
#include "lockstep/dataset.h"
#include "lockstep/loader_base.h"
#include "lockstep/push_source.h"
#include "lockstep/random.h"
#include "lockstep/tensor_walk.h"

namespace lockstep {

/// What a Loader reads from front to back: `std::optional<Sample> next()`, nothing at the end. It
/// is called by one thread at a time. One that can wait for long takes a std::stop_token, and gives
/// up when stop is requested.
///
/// A stream with `void seek(const StreamPosition&)` is replayable: it is told where each epoch and
/// slot begins, and can go back. One without is read on and on, whatever the epoch.
template <typename S>
concept Stream =
    !Dataset<S> &&
    (
        requires(S & stream, std::stop_token stop) { stream.next(stop).has_value(); } ||
        requires(S & stream) { stream.next().has_value(); });

template <typename S>
concept SeekableStream = Stream<S> && requires(S& stream, const StreamPosition& position) {
  stream.seek(position);
};

/// A batch and where it belongs.
template <typename Batch>
struct Delivered {
  BatchAddress address;
  bool last_in_step = false;          // the last one that this process gets for the step
  std::vector<std::int64_t> indices;  // its samples; of a stream: their numbers
  std::optional<Batch> batch;         // nothing where there is no sample (Dealing::kExact)

  std::int64_t samples() const { return static_cast<std::int64_t>(indices.size()); }
};

namespace detail {

template <typename S>
auto next_of(S& stream, const std::stop_token& stop) {
  if constexpr (requires { stream.next(stop); }) {
    return stream.next(stop);
  } else {
    return stream.next();
  }
}

template <typename S>
struct SampleOf {
  using type = typename decltype(next_of(std::declval<S&>(), std::stop_token{}))::value_type;
};
template <Dataset S>
struct SampleOf<S> {
  using type = sample_t<S>;
};

/// Passes the samples' indices to a collate function that takes them.
template <typename Collate, typename Sample>
auto call_collate(const Collate& collate, std::vector<Sample>& samples, Indices indices) {
  if constexpr (std::invocable<const Collate&, std::vector<Sample>&, Indices>) {
    return std::invoke(collate, samples, indices);
  } else if constexpr (std::invocable<const Collate&, std::vector<Sample>&>) {
    return std::invoke(collate, samples);
  } else {
    return std::invoke(collate, std::move(samples));
  }
}

/// A collate function of the user's is given samples even where the dataset could make a batch.
template <typename S, typename Collate>
inline constexpr bool takes_whole_batches =
    BatchDataset<S>&& std::is_same_v<Collate, DefaultCollate>;

template <typename S, typename Collate>
struct BatchOf {
  using type =
      decltype(call_collate(std::declval<const Collate&>(),
                            std::declval<std::vector<typename SampleOf<S>::type>&>(), Indices{}));
};
template <typename S, typename Collate>
requires takes_whole_batches<S, Collate>
struct BatchOf<S, Collate> {
  using type = decltype(std::declval<const S&>().get_batch(Indices{}));
};

template <typename Batch>
class TypedReader : public BatchReader {
 public:
  void for_each_tensor(void* batch, const std::function<void(at::Tensor&)>& visit) const override {
    walk_tensors<false>(*static_cast<Batch*>(batch), visit);
  }
};

template <typename D, typename Collate>
class DatasetReader : public TypedReader<typename BatchOf<D, Collate>::type> {
 public:
  using Batch = typename BatchOf<D, Collate>::type;

  DatasetReader(std::shared_ptr<const D> dataset, Collate collate)
      : dataset_(std::move(dataset)), collate_(std::move(collate)) {}

  std::optional<std::int64_t> size() const override { return dataset_->size(); }
  bool replayable() const override { return true; }

  RawBatch read(const BatchRequest& request, const std::stop_token& stop) override {
    check_indices(request.indices);
    if constexpr (takes_whole_batches<D, Collate>) {
      return {std::make_shared<Batch>(dataset_->get_batch(Indices(request.indices))),
              request.indices};
    } else {
      std::vector<sample_t<D>> samples;
      samples.reserve(request.indices.size());
      for (const std::int64_t index : request.indices) {
        if (stop.stop_requested()) return {};
        try {
          Random random = Random::of_sample(request.seed, request.epoch, index);
          samples.push_back(read_sample(*dataset_, index, random));
        } catch (...) {
          rethrow_for_sample(index);
        }
      }
      return {std::make_shared<Batch>(call_collate(collate_, samples, Indices(request.indices))),
              request.indices};
    }
  }

 private:
  // A sampler of the user's may name samples that are not there.
  void check_indices(const std::vector<std::int64_t>& indices) const {
    const std::int64_t size = dataset_->size();
    for (const std::int64_t index : indices) {
      if (index < 0 || index >= size) throw_bad_index("Loader", index, size);
    }
  }

  std::shared_ptr<const D> dataset_;
  Collate collate_;
};

template <typename S, typename Collate>
class StreamReader : public TypedReader<typename BatchOf<S, Collate>::type> {
 public:
  using Batch = typename BatchOf<S, Collate>::type;

  StreamReader(std::shared_ptr<S> stream, Collate collate)
      : stream_(std::move(stream)), collate_(std::move(collate)) {}

  std::optional<std::int64_t> size() const override { return std::nullopt; }
  bool replayable() const override { return SeekableStream<S>; }

  RawBatch read(const BatchRequest& request, const std::stop_token& stop) override {
    if constexpr (SeekableStream<S>) go_to(request.position);
    std::vector<typename SampleOf<S>::type> samples;
    std::vector<std::int64_t> numbers;
    while (std::ssize(samples) < request.batch_size) {
      const std::int64_t number = request.position.sample + std::ssize(samples);
      try {
        auto sample = next_of(*stream_, stop);
        if (!sample) break;
        samples.push_back(std::move(*sample));
      } catch (...) {
        at_ = std::nullopt;
        rethrow_for_sample(number);
      }
      numbers.push_back(number);
    }
    if (at_) at_->sample += std::ssize(samples);
    const bool cut = std::ssize(samples) < request.batch_size;
    if (samples.empty() || stop.stop_requested() || (cut && request.drop_last)) return {};
    auto batch = std::make_shared<Batch>(call_collate(collate_, samples, Indices(numbers)));
    return {std::move(batch), std::move(numbers)};
  }

 private:
  void go_to(const StreamPosition& wanted) {
    const bool there = at_ && at_->epoch == wanted.epoch && at_->slot == wanted.slot &&
                       at_->slots == wanted.slots && at_->sample == wanted.sample;
    if (there) return;
    stream_->seek(wanted);
    at_ = wanted;
  }

  std::shared_ptr<S> stream_;
  Collate collate_;
  std::optional<StreamPosition> at_;
};

template <typename S, typename Collate>
std::unique_ptr<BatchReader> make_reader(auto source, Collate collate) {
  if constexpr (Dataset<S>) {
    return std::make_unique<DatasetReader<S, Collate>>(std::move(source), std::move(collate));
  } else {
    return std::make_unique<StreamReader<S, Collate>>(std::move(source), std::move(collate));
  }
}

}  // namespace detail

/// Reads samples and delivers batches, in an order that depends on the options, the epoch and the
/// number of slots alone.
///
///     Loader loader(dataset, {.batch_size = 32, .shuffle = true, .num_workers = 2});
///     for (auto& [x, y] : loader.epoch(0)) ...
///
/// `source` is a Dataset or a Stream: a temporary is moved in, a shared_ptr shared; anything else
/// is referred to and must outlive the loader. It is never copied. `collate` makes a batch of a
/// `std::vector<Sample>&` (and, where it takes them, a span of the samples' indices); several
/// threads call it at a time.
///
/// What a worker throws is thrown by next() when its batch is due: SampleError where a sample could
/// not be read. Calling next() again goes on with the batch after it.
template <typename Source, typename Collate = DefaultCollate>
requires Dataset<Source> || Stream<Source>
class Loader : public LoaderBase {
 public:
  using Batch = typename detail::BatchOf<Source, Collate>::type;

  /// Throws InvalidArgument when the options contradict each other.
  template <typename S>
  explicit Loader(S&& source, LoaderOptions options = {}, Collate collate = {})
      : LoaderBase(detail::make_reader<Source, Collate>(detail::share(std::forward<S>(source)),
                                                        std::move(collate)),
                   std::move(options)) {}

  /// The next batch of the epoch, in the order step, slot, micro-batch; nothing at its end. Throws
  /// Timeout when it did not come in time; the batch can still be waited for.
  std::optional<Delivered<Batch>> next() {
    std::optional<detail::RawDelivery> raw = take();
    if (!raw) return std::nullopt;
    return typed(std::move(*raw));
  }

  /// Reads any batch of any epoch now, in the caller. Needs a Dataset. What next() gives does not
  /// change.
  Delivered<Batch> at(const BatchAddress& address) const { return typed(read(address)); }

  /// Goes through the batches of an epoch that hold samples.
  class Iterator;
  class Epoch;
  Epoch epoch(std::int64_t epoch, std::int64_t first_step = 0) & {
    begin_epoch(epoch, first_step);
    return Epoch(this);
  }

 private:
  static Delivered<Batch> typed(detail::RawDelivery raw) {
    Delivered<Batch> delivered{.address = raw.address,
                               .last_in_step = raw.last_in_step,
                               .indices = std::move(raw.raw.indices),
                               .batch = std::nullopt};
    if (raw.raw.batch) delivered.batch = std::move(*static_cast<Batch*>(raw.raw.batch.get()));
    return delivered;
  }
};

template <typename S>
explicit Loader(S&&, LoaderOptions = {}) -> Loader<detail::unshared_t<S>>;
template <typename S, typename Collate>
explicit Loader(S&&, LoaderOptions, Collate) -> Loader<detail::unshared_t<S>, Collate>;

template <typename Source, typename Collate>
requires Dataset<Source> || Stream<Source>
class Loader<Source, Collate>::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(Loader* loader) : loader_(loader) { ++*this; }

  Batch& operator*() const { return *current_->batch; }
  Batch* operator->() const { return &*current_->batch; }
  Iterator& operator++() {
    do {
      current_ = loader_->next();
    } while (current_ && !current_->batch);
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !current_; }

 private:
  Loader* loader_;
  mutable std::optional<Delivered<Batch>> current_;
};

template <typename Source, typename Collate>
requires Dataset<Source> || Stream<Source>
class Loader<Source, Collate>::Epoch {
 public:
  explicit Epoch(Loader* loader) : loader_(loader) {}
  Iterator begin() const { return Iterator(loader_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  Loader* loader_;
};

}  // namespace lockstep
