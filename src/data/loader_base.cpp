#include "lockstep/loader_base.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>

#include "aten/single_threaded.h"
#include "aten/vector_math.h"
#include "data/loader_checks.h"
#include "data/permutation.h"
#include "data/prefetcher.h"
#include "data/slot_plan.h"
#include "data/staging.h"

namespace lockstep {
namespace {

using detail::BatchReader;
using detail::BatchRequest;
using detail::RawBatch;
using detail::RawDelivery;

// What a turn gives.
struct Loaded {
  RawBatch raw;
  std::optional<c10::Event> copied;
};

}  // namespace

class LoaderBase::Impl {
 public:
  Impl(std::unique_ptr<BatchReader> reader, LoaderOptions options)
      : reader_(std::move(reader)),
        options_(std::move(options)),
        is_stream_(!reader_->size().has_value()),
        staging_(options_.pin_memory, options_.device),
        prefetcher_(prefetching()) {}

  Prefetcher::Options prefetching() const;
  std::shared_ptr<const SlotPlan> make_plan(std::int64_t epoch) const;
  std::shared_ptr<const SlotPlan> plan_of(std::int64_t epoch) const;
  SlotPlan::Rules rules() const;
  std::int64_t dataset_size() const;
  /// A plan that knows how many, not which: costs nothing unless there is a batch sampler.
  std::shared_ptr<const SlotPlan> counts_of(std::int64_t epoch) const;
  void begin_epoch(std::int64_t epoch, std::int64_t first_step);
  void begin_stream(std::int64_t epoch, std::int64_t first_step);
  Prefetcher::Work work(Turns turns) const;
  Loaded load(const BatchRequest& request, const std::stop_token& stop) const;
  RawDelivery deliver(std::int64_t turn, Loaded loaded) const;
  BatchAddress address_of(std::int64_t turn) const;
  void check_address(const BatchAddress& address) const;
  std::optional<RawDelivery> take();

  std::shared_ptr<BatchReader> reader_;
  LoaderOptions options_;
  bool is_stream_;
  Deal deal_;
  Staging staging_;
  std::int64_t epoch_ = 0;
  std::int64_t committed_ = 0;
  std::int64_t first_turn_ = 0;  // of the epoch; above 0 only for a stream that is read on
  std::optional<Turns> turns_;   // nothing: no epoch is under way
  std::shared_ptr<const SlotPlan> plan_;
  // The plan that was asked for last, of an epoch that is not under way.
  mutable std::pair<std::int64_t, std::shared_ptr<const SlotPlan>> other_plan_;
  Prefetcher prefetcher_;  // last: its threads use all of the above
};

Prefetcher::Options LoaderBase::Impl::prefetching() const {
  settle_vector_math();
  // However many workers: a stream's samples come one after the other.
  const int workers = is_stream_ ? std::min(options_.num_workers, 1) : options_.num_workers;
  return {.workers = workers,
          .ahead = std::int64_t{options_.num_workers} * options_.prefetch_factor,
          .timeout = options_.timeout,
          .thread_start = [init = options_.worker_init, workers](int worker) {
            run_operators_single_threaded();
            if (init) init({.id = worker, .num_workers = workers});
          }};
}

SlotPlan::Rules LoaderBase::Impl::rules() const {
  return {.batch_size = options_.batch_size,
          .drop_last = options_.drop_last,
          .dealing = options_.dealing,
          .slots = deal_.slots,
          .accumulate = deal_.accumulate};
}

std::int64_t LoaderBase::Impl::dataset_size() const {
  const std::int64_t size = *reader_->size();
  if (size < 0) throw InvalidArgument(concat("Loader: the dataset's size is ", size));
  return size;
}

std::shared_ptr<const SlotPlan> LoaderBase::Impl::make_plan(std::int64_t epoch) const {
  if (options_.batch_sampler) {
    return std::make_shared<SlotPlan>(rules(), options_.batch_sampler(epoch));
  }
  if (options_.sampler) {
    options_.sampler->set_epoch(epoch);
    return std::make_shared<SlotPlan>(rules(), options_.sampler->indices());
  }
  if (!options_.shuffle) return std::make_shared<SlotPlan>(rules(), dataset_size());
  at::Generator generator = epoch_generator(options_.seed, epoch);
  return std::make_shared<SlotPlan>(rules(), random_permutation(dataset_size(), generator));
}

std::shared_ptr<const SlotPlan> LoaderBase::Impl::counts_of(std::int64_t epoch) const {
  if (options_.batch_sampler || (turns_ && epoch == epoch_)) return plan_of(epoch);
  const std::int64_t size = options_.sampler ? options_.sampler->size() : dataset_size();
  return std::make_shared<SlotPlan>(rules(), size);
}

std::shared_ptr<const SlotPlan> LoaderBase::Impl::plan_of(std::int64_t epoch) const {
  if (turns_ && plan_ && epoch == epoch_) return plan_;
  if (!other_plan_.second || other_plan_.first != epoch) other_plan_ = {epoch, make_plan(epoch)};
  return other_plan_.second;
}

Loaded LoaderBase::Impl::load(const BatchRequest& request, const std::stop_token& stop) const {
  const auto on_copy_stream = staging_.on_copy_stream();
  Loaded loaded{.raw = reader_->read(request, stop), .copied = std::nullopt};
  if (!loaded.raw.batch) return loaded;
  void* batch = loaded.raw.batch.get();
  loaded.copied =
      staging_.stage([this, batch](const auto& visit) { reader_->for_each_tensor(batch, visit); });
  return loaded;
}

// What it captures stays as it is while workers run: start() and the destructor wait for them.
Prefetcher::Work LoaderBase::Impl::work(Turns turns) const {
  return [this, turns = std::move(turns), plan = plan_, epoch = epoch_, slots = deal_.slots,
          accumulate = deal_.accumulate](std::int64_t turn,
                                         const std::stop_token& stop) -> Prefetcher::Result {
    const Turns::Place place = turns.place(turn);
    BatchRequest request{.seed = options_.seed,
                         .epoch = epoch,
                         .indices = {},
                         .position = {},
                         .batch_size = options_.batch_size,
                         .drop_last = options_.drop_last};
    if (plan) {
      request.indices = plan->indices(place.step, place.slot, place.micro_batch);
      if (request.indices.empty()) return std::make_shared<Loaded>();
    } else {
      const std::int64_t batch =
          reader_->replayable() ? place.step * accumulate + place.micro_batch : turn;
      request.position = {.epoch = epoch,
                          .slot = place.slot,
                          .slots = slots,
                          .sample = batch * options_.batch_size};
    }
    Loaded loaded = load(request, stop);
    if (!loaded.raw.batch) return nullptr;
    return std::make_shared<Loaded>(std::move(loaded));
  };
}

void LoaderBase::Impl::begin_epoch(std::int64_t epoch, std::int64_t first_step) {
  if (epoch < 0) throw InvalidArgument(concat("Loader: epoch is ", epoch, "; 0 or more"));
  if (first_step < 0) throw InvalidArgument(concat("Loader: step is ", first_step, "; 0 or more"));
  if (is_stream_) {
    begin_stream(epoch, first_step);
    return;
  }
  const bool under_way = turns_ && epoch == epoch_;
  const std::shared_ptr<const SlotPlan> plan = plan_of(epoch);
  if (first_step > plan->steps()) {
    throw InvalidArgument(concat("Loader: step ", first_step, " is past the end of an epoch of ",
                                 plan->steps(), " steps"));
  }
  epoch_ = epoch;
  committed_ = first_step;
  plan_ = plan;
  other_plan_ = {};
  turns_.emplace(deal_.mine, deal_.accumulate, plan->batches_per_slot());
  const std::int64_t turn = turns_->first_turn(first_step);
  if (under_way) {
    prefetcher_.seek(turn);
  } else {
    staging_.follow_current_stream();
    prefetcher_.start(work(*turns_), turn, turns_->end());
  }
}

void LoaderBase::Impl::begin_stream(std::int64_t epoch, std::int64_t first_step) {
  if (!reader_->replayable() && first_step != 0) {
    throw InvalidArgument(concat("Loader: cannot begin at step ", first_step,
                                 ": the stream cannot seek, so an epoch of it begins where the one "
                                 "before was left"));
  }
  const bool read_on = !reader_->replayable() && prefetcher_.started();
  epoch_ = epoch;
  committed_ = first_step;
  turns_.emplace(deal_.mine, deal_.accumulate, -1);
  if (read_on) {
    first_turn_ = prefetcher_.cursor();
    return;
  }
  staging_.follow_current_stream();
  prefetcher_.start(work(*turns_), turns_->first_turn(first_step), turns_->end());
}

BatchAddress LoaderBase::Impl::address_of(std::int64_t turn) const {
  const Turns::Place place = turns_->place(turn - first_turn_);
  return {
      .epoch = epoch_, .step = place.step, .slot = place.slot, .micro_batch = place.micro_batch};
}

RawDelivery LoaderBase::Impl::deliver(std::int64_t turn, Loaded loaded) const {
  void* batch = loaded.raw.batch.get();
  staging_.arrive(loaded.copied,
                  [this, batch](const auto& visit) { reader_->for_each_tensor(batch, visit); });
  return {.address = address_of(turn),
          .last_in_step = turns_->place(turn - first_turn_).last_in_step,
          .raw = std::move(loaded.raw)};
}

std::optional<RawDelivery> LoaderBase::Impl::take() {
  if (!turns_) throw InvalidArgument("Loader: no epoch is under way; call begin_epoch() first");
  const std::int64_t turn = prefetcher_.cursor();
  try {
    const Prefetcher::Result result = prefetcher_.next();
    if (!result) return std::nullopt;
    return deliver(turn, std::move(*static_cast<Loaded*>(result.get())));
  } catch (const Timeout&) {
    const BatchAddress address = address_of(turn);
    std::string samples;
    if (plan_) {
      const auto indices = plan_->indices(address.step, address.slot, address.micro_batch);
      if (!indices.empty()) samples = concat(" (its first sample is ", indices.front(), ")");
    }
    throw Timeout(concat("Loader: the batch of epoch ", address.epoch, ", step ", address.step,
                         ", slot ", address.slot, ", micro-batch ", address.micro_batch, samples,
                         " was not there within ", options_.timeout.count(), " ms"));
  }
}

void LoaderBase::Impl::check_address(const BatchAddress& address) const {
  if (is_stream_) throw InvalidArgument("Loader: batches of a stream cannot be asked for");
  const auto plan = plan_of(address.epoch);
  const bool there = address.epoch >= 0 && address.step >= 0 && address.step < plan->steps() &&
                     address.slot >= 0 && address.slot < deal_.slots && address.micro_batch >= 0 &&
                     address.micro_batch < plan->micro_batches(address.step);
  if (there) return;
  throw InvalidArgument(concat("Loader: there is no batch at epoch ", address.epoch, ", step ",
                               address.step, ", slot ", address.slot, ", micro-batch ",
                               address.micro_batch, " (", plan->steps(), " steps, ", deal_.slots,
                               " slots, ", deal_.accumulate, " micro-batches)"));
}

LoaderBase::LoaderBase(std::unique_ptr<BatchReader> reader, LoaderOptions options) {
  check_options(options, !reader->size().has_value());
  impl_ = std::make_unique<Impl>(std::move(reader), std::move(options));
}

LoaderBase::~LoaderBase() = default;

void LoaderBase::deal(Deal deal) {
  check_deal(deal);
  impl_->deal_ = std::move(deal);
  impl_->turns_.reset();
  impl_->other_plan_ = {};
}

const Deal& LoaderBase::dealt() const {
  return impl_->deal_;
}

const LoaderOptions& LoaderBase::options() const {
  return impl_->options_;
}

bool LoaderBase::replayable() const {
  return impl_->reader_->replayable();
}

void LoaderBase::begin_epoch(std::int64_t epoch, std::int64_t first_step) {
  impl_->begin_epoch(epoch, first_step);
}

void LoaderBase::commit(std::int64_t step) {
  if (!impl_->turns_) {
    throw InvalidArgument("Loader: no epoch is under way; call begin_epoch() first");
  }
  if (step < impl_->committed_) {
    throw InvalidArgument(concat("Loader: step ", step, " is committed already; the next one is ",
                                 impl_->committed_));
  }
  impl_->committed_ = step + 1;
}

LoaderState LoaderBase::state() const {
  return {.epoch = impl_->epoch_, .steps = impl_->committed_};
}

void LoaderBase::rewind() {
  if (!replayable()) {
    throw InvalidArgument("Loader: cannot rewind: the stream cannot seek");
  }
  begin_epoch(state());
}

std::optional<std::int64_t> LoaderBase::steps_per_epoch(std::int64_t epoch) const {
  if (impl_->is_stream_) return std::nullopt;
  return impl_->counts_of(epoch)->steps();
}

std::optional<std::int64_t> LoaderBase::samples_per_epoch(std::int64_t epoch) const {
  if (impl_->is_stream_) return std::nullopt;
  return impl_->counts_of(epoch)->samples();
}

std::int64_t LoaderBase::micro_batches(std::int64_t step) const {
  if (impl_->is_stream_) return impl_->deal_.accumulate;
  return impl_->counts_of(impl_->epoch_)->micro_batches(step);
}

std::vector<std::int64_t> LoaderBase::indices(const BatchAddress& address) const {
  impl_->check_address(address);
  return impl_->plan_of(address.epoch)->indices(address.step, address.slot, address.micro_batch);
}

std::optional<RawDelivery> LoaderBase::take() {
  return impl_->take();
}

RawDelivery LoaderBase::read(const BatchAddress& address) const {
  const BatchRequest request{.seed = impl_->options_.seed,
                             .epoch = address.epoch,
                             .indices = indices(address),
                             .position = {},
                             .batch_size = impl_->options_.batch_size,
                             .drop_last = impl_->options_.drop_last};
  Loaded loaded;
  if (!request.indices.empty()) loaded = impl_->load(request, std::stop_token{});
  impl_->staging_.arrive(loaded.copied, [&](const auto& visit) {
    impl_->reader_->for_each_tensor(loaded.raw.batch.get(), visit);
  });
  return {.address = address, .last_in_step = false, .raw = std::move(loaded.raw)};
}

}  // namespace lockstep
