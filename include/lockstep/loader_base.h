#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/dealing.h"
#include "lockstep/error.h"
#include "lockstep/sampler.h"

namespace at {
class Tensor;
}

namespace lockstep {

/// Given to worker_init, on the worker's own thread.
struct WorkerInfo {
  int id = 0;
  int num_workers = 0;
};

/// The batches of an epoch, each a list of dataset indices: a pure function of the epoch.
using BatchSampler = std::function<std::vector<std::vector<std::int64_t>>(std::int64_t epoch)>;

struct LoaderOptions {
  std::int64_t batch_size = 1;  // samples that one slot gets for one micro-batch
  bool shuffle = false;
  bool drop_last = false;  // leaves out what would make a batch short or a sample appear twice
  std::uint64_t seed = 0;  // of the order and of samples' random numbers; the same on every rank
  Dealing dealing = Dealing::kEven;

  int num_workers = 0;                   // threads that load ahead; 0: the caller loads
  int prefetch_factor = 2;               // batches that each worker may be ahead
  std::chrono::milliseconds timeout{0};  // for one batch, with workers; 0: none
  std::function<void(const WorkerInfo&)> worker_init = {};

  std::shared_ptr<Sampler> sampler = nullptr;  // the order of samples, instead of shuffle
  BatchSampler batch_sampler = {};  // whole batches, instead of batch_size, shuffle and drop_last

  bool pin_memory = false;  // batches in page-locked memory; does nothing without an accelerator
  std::optional<c10::Device> device = std::nullopt;  // batches arrive there, copied ahead
};

/// A sample could not be read. The message is "sample <index>: " and what the dataset said.
class SampleError : public Error {
 public:
  SampleError(const std::string& message, std::int64_t index, std::exception_ptr cause)
      : Error(message), index_(index), cause_(std::move(cause)) {}

  /// In the dataset, or, of a stream, the number of samples read before.
  std::int64_t index() const { return index_; }
  /// What the dataset threw.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  std::int64_t index_;
  std::exception_ptr cause_;
};

/// Where a stream that can seek is to go on.
struct StreamPosition {
  std::int64_t epoch = 0;
  int slot = 0;
  int slots = 1;
  std::int64_t sample = 0;  // samples of this slot in this epoch that come before
};

namespace detail {

struct BatchRequest {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices;  // of a dataset
  StreamPosition position;            // of a stream
  std::int64_t batch_size = 0;        // of a stream
  bool drop_last = false;
};

struct RawBatch {
  std::shared_ptr<void> batch;        // null: none, because a stream has ended or nobody waits
  std::vector<std::int64_t> indices;  // of a stream: the numbers of its samples
};

/// What the templates know and the engine does not: how a batch is read, and where its tensors are.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Nothing for a stream.
  virtual std::optional<std::int64_t> size() const = 0;
  virtual bool replayable() const = 0;
  /// A dataset's batches are read by several threads at a time; a stream's by one.
  virtual RawBatch read(const BatchRequest& request, const std::stop_token& stop) = 0;
  virtual void for_each_tensor(void* batch,
                               const std::function<void(at::Tensor&)>& visit) const = 0;
};

/// Call it in a handler: throws SampleError for the exception being handled.
[[noreturn]] void rethrow_for_sample(std::int64_t index);

struct RawDelivery {
  BatchAddress address;
  bool last_in_step = false;
  RawBatch raw;
};

}  // namespace detail

/// The part of a Loader that does not depend on what a sample is: which batch comes when.
///
/// A loader is used by one thread. Its workers are threads that share the dataset; they run ATen
/// operators single-threaded.
class LoaderBase {
 public:
  virtual ~LoaderBase();
  LoaderBase(const LoaderBase&) = delete;
  LoaderBase& operator=(const LoaderBase&) = delete;

  /// Deals the samples over slots; without it there is one. Ends the epoch under way: begin_epoch()
  /// comes next. Throws InvalidArgument for slots that do not exist or appear twice.
  void deal(Deal deal);
  const Deal& dealt() const;
  const LoaderOptions& options() const;

  /// Whether a batch can be delivered again. False for a stream that cannot seek.
  bool replayable() const;

  /// Starts an epoch, at any of its steps, without reading what comes before. Batches already
  /// loaded ahead are kept when the epoch is the one under way. Throws InvalidArgument for a step
  /// past the end, and for one above 0 of a source that is not replayable.
  void begin_epoch(std::int64_t epoch, std::int64_t first_step = 0);
  void begin_epoch(const LoaderState& state) { begin_epoch(state.epoch, state.steps); }

  /// The step, and all before it in the epoch, took effect and need not be delivered again.
  void commit(std::int64_t step);

  /// The epoch and how many of its steps were committed; begin_epoch(state()) goes on from there.
  LoaderState state() const;

  /// Goes back to the first step that is not committed. Throws InvalidArgument when the source is
  /// not replayable.
  void rewind();

  /// Of the epoch given. Nothing for a stream. With a batch sampler this asks it.
  std::optional<std::int64_t> steps_per_epoch(std::int64_t epoch = 0) const;
  /// Samples that all slots together get in the epoch, repeated ones included. Nothing for a
  /// stream.
  std::optional<std::int64_t> samples_per_epoch(std::int64_t epoch = 0) const;
  /// What a step of the epoch under way takes from each slot: `accumulate`, or fewer in an epoch's
  /// last step. Of a stream always `accumulate`: when it ends is not known.
  std::int64_t micro_batches(std::int64_t step) const;
  /// The samples of any batch of any epoch, also those of other processes' slots. Nothing is read.
  std::vector<std::int64_t> indices(const BatchAddress& address) const;

 protected:
  LoaderBase(std::unique_ptr<detail::BatchReader> reader, LoaderOptions options);

  /// Nothing at the end of the epoch. A batch that is null holds no sample (Dealing::kExact).
  std::optional<detail::RawDelivery> take();
  /// Reads now, in the caller, whatever was delivered before.
  detail::RawDelivery read(const BatchAddress& address) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
