#include "train/gradient_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Device.h>

#include "comm/group_impl.h"
#include "lockstep/autocast.h"
#include "lockstep/clip_grad.h"
#include "lockstep/random_scope.h"
#include "train/autocast_type.h"
#include "train/host_random_watch.h"

namespace lockstep {

namespace {

// A loss that is not finite may have gradients that are. It must not pass unnoticed on the other
// ranks, so its gradients become NaN, which the reduction carries to all of them.
void backward(const at::Tensor& loss) {
  if (!loss.is_cpu()) return loss.backward(at::ones_like(loss) + loss.detach() * 0);
  if (std::isfinite(loss.item<double>())) return loss.backward();
  loss.backward(at::full_like(loss, NAN));
}

void for_each_tensor(TaskLoss& loss, const std::function<void(at::Tensor&)>& change) {
  change(loss.value);
  if (loss.counted.defined()) change(loss.counted);
  for (auto& [name, metric] : loss.metrics) change(metric.sum);
}

}  // namespace

void SlotLoss::add(const TaskLoss& loss, std::int64_t samples) {
  const auto count = static_cast<double>(samples);
  // After backward nothing hangs on the loss any more, so it need not be detached.
  losses_.push_back({.value = loss.value,
                     .factor = loss.count ? 1 : count,
                     .count = loss.count.value_or(count),
                     .counted = loss.counted});
  for (const auto& [name, metric] : loss.metrics) {
    metrics_[name].push_back({.value = metric.sum.detach(), .factor = 1, .count = metric.count});
  }
}

SlotLoss::Sum SlotLoss::sum_of(const std::vector<Part>& parts) {
  Sum total;
  for (const Part& part : parts) {
    total.sum += part.value.item<double>() * part.factor;
    total.count += part.counted.defined() ? part.counted.item<double>() : part.count;
  }
  return total;
}

std::map<std::string, SlotLoss::Sum> SlotLoss::metrics() const {
  std::map<std::string, Sum> sums;
  for (const auto& [name, parts] : metrics_) sums[name] = sum_of(parts);
  return sums;
}

GradientStep::GradientStep(World& world, TrainingTask& task, const TrainerOptions& options,
                           const SlotShare& share, StepClock& clock,
                           const std::shared_ptr<GradientCompression>& compression,
                           StepGraphs* graphs, bool formed_again)
    : world_(world),
      task_(task),
      options_(options),
      share_(share),
      clock_(clock),
      sized_(task.data().steps_per_epoch().has_value()),
      counts_(task.counts() || !sized_),
      dealt_alike_(task.data().options().dealing == Dealing::kEven &&
                   !task.data().options().batch_sampler),
      parameters_(named_parameters(*task.module())),
      graphs_(graphs) {
  task_.release_held();
  if (task_.sharded() != nullptr) return;
  if (share_.one_each() && share_.slots > 1) {
    if (graphs_ == nullptr) {
      distribute(compression, formed_again);
    } else {
      graphs_->on_stream([&] { distribute(compression, formed_again); });
      task_.engine()->measure_no_more();
    }
  } else {
    task_.stop_distributing();  // there may have been a process for each slot before
  }
  if (!share_.one_each()) {
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : parameters_) tensors.push_back(parameter.tensor);
    slot_gradients_ = std::make_unique<SlotGradients>(world_.group(), share_, std::move(tensors));
  }
}

void GradientStep::distribute(const std::shared_ptr<GradientCompression>& compression,
                              bool formed_again) {
  DistributedDataParallelOptions ddp = options_.ddp;
  ddp.broadcast_buffers = false;  // StepTransactions does, at the end of each step
  ddp.init_sync = ddp.init_sync && !formed_again;
  task_.distribute(world_, ddp);
  if (compression) {
    task_.engine()->register_comm_hook(compression);
  } else if (const auto* hook = std::get_if<CommHook>(&options_.compression)) {
    task_.engine()->register_comm_hook(*hook);
  }
}

// The weight of every batch is known beforehand, also of those of other processes: dealing is a
// pure function. So the means can be weighted before backward, without asking anyone.
GradientStep::Weights GradientStep::weights_of(const std::vector<StepBatch>& batches) const {
  Weights weights;
  if (!sized_) {
    for (const StepBatch& batch : batches) weights.samples += batch.samples;
    return weights;
  }
  const std::int64_t first = batches.front().samples;
  if (dealt_alike_) {
    const std::size_t end = end_of_slot(batches, 0);
    weights.micro_batches = static_cast<std::int64_t>(end);
    for (std::size_t i = 0; i < end; ++i) {
      weights.samples += batches[i].samples * share_.slots;
      weights.even = weights.even && batches[i].samples == first;
    }
    return weights;
  }
  BatchAddress address = batches.front().address;
  weights.micro_batches = task_.data().micro_batches(address.step);
  for (address.slot = 0; address.slot < share_.slots; ++address.slot) {
    for (std::int64_t micro = 0; micro < weights.micro_batches; ++micro) {
      address.micro_batch = micro;
      const auto samples = static_cast<std::int64_t>(task_.data().indices(address).size());
      weights.samples += samples;
      weights.even = weights.even && samples == first;
    }
  }
  return weights;
}

// What backward starts from, such that the mean of the slots' gradients is that of the mean over
// all samples of the step; or, where only the loss function knows how much it counts, that of a
// sum.
at::Tensor GradientStep::objective(const TaskLoss& loss, const StepBatch& batch,
                                   const Weights& weights) const {
  if (counts_) {
    return loss.count ? loss.value : loss.value * static_cast<double>(batch.samples);
  }
  if (weights.even) {
    return weights.micro_batches == 1 ? loss.value : loss.value / weights.micro_batches;
  }
  return loss.value * (static_cast<double>(batch.samples) * share_.slots / weights.samples);
}

std::size_t GradientStep::end_of_slot(const std::vector<StepBatch>& batches,
                                      std::size_t first) const {
  std::size_t last = first;
  while (last < batches.size() && batches[last].address.slot == batches[first].address.slot) ++last;
  return last;
}

void GradientStep::zero_grad() {
  if (DataParallelEngine* engine = task_.engine()) return engine->zero_grad();
  if (ShardedEngine* sharded = task_.sharded()) return sharded->zero_grad();
  for (auto& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
}

// How long the backward just done waited for the other ranks.
std::optional<std::chrono::nanoseconds> GradientStep::reduced_since(bool reduced) const {
  DataParallelEngine* engine = task_.engine();
  return reduced && engine != nullptr ? engine->since_last_bucket() : std::nullopt;
}

TaskLoss GradientStep::forward(const std::function<TaskLoss()>& forward) const {
  std::optional<Autocast> autocast;
  if (const auto type = autocast_type(options_.precision)) {
    autocast.emplace(AutocastOptions{.device_type = world_.device().type(), .dtype = *type});
  }
  return forward();
}

// The usual step is the largest so far with batches that are all alike; what is recorded stays so.
// The ranks know of each other's samples, and so choose the same step; they do not know of shapes.
StepKind GradientStep::kind_of(const std::vector<StepBatch>& batches, const Weights& weights) {
  const auto is_even = [&](const StepBatch& batch) {
    return batch.samples == batches.front().samples;
  };
  if (!weights.even || !std::ranges::all_of(batches, is_even)) return StepKind::unusual;
  const bool is_larger = !usual_ || weights.samples > usual_->samples;
  if (is_larger && !graphs_->is_recorded()) {
    usual_ = weights;
    counts_seen_.clear();
    task_.release_held();
    graphs_->forget();
  }
  if (weights != usual_) return StepKind::unusual;
  bool alike = true;
  for (std::size_t i = 0; i < batches.size(); ++i) alike = alike && task_.is_like_held(i);
  if (alike) {
    unlike_steps_ = 0;
    return StepKind::usual;
  }
  if (share_.slots > 1) {
    throw InvalidArgument(
        "cuda_graph: a batch has other shapes than those before; on several ranks all must have "
        "the same, as the ranks replay together");
  }
  constexpr int kStepsToGiveUpTheFirst = 10;
  if (++unlike_steps_ == kStepsToGiveUpTheFirst && !graphs_->is_recorded()) {
    unlike_steps_ = 0;  // it was the first that was unusual
    counts_seen_.clear();
    task_.release_held();
    graphs_->forget();
  }
  return StepKind::unusual;
}

TaskLoss GradientStep::replay(std::size_t index, const StepBatch& batch, const Weights& weights,
                              const Place& place) {
  const std::string part =
      concat("gradients", place.first ? ", first" : "", place.last ? ", last" : "");
  Recorded& recorded = recorded_[part];
  task_.hold(index);
  graphs_->run(part, [&] {
    recorded = {};
    std::optional<HostRandomWatch> draws;
    const bool watches = graphs_->records() && !world_.device().is_cpu();
    if (watches) draws.emplace();
    recorded.loss = forward([this] { return task_.forward_held(); });
    if (draws && !draws->drawn_by().empty()) {
      throw InvalidArgument(concat(
          "cuda_graph: the loss function draws random numbers on the CPU (", draws->drawn_by(),
          "), and steps that are replayed would have those of the one "
          "that was recorded; draw them on the GPU"));
    }
    if (watches) expect_on_device(recorded.loss);
    watch_counts(recorded.loss);
    backward(objective(recorded.loss, batch, weights));
    // What autograd has left of this step would be in the way of the next one.
    for_each_tensor(recorded.loss, [](at::Tensor& tensor) { tensor = tensor.detach(); });
    for (const auto& parameter : parameters_) {
      recorded.gradients.push_back(parameter.tensor.grad());
    }
  });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.mutable_grad() = recorded.gradients[i];
  }
  // The next replay writes where this one did.
  TaskLoss loss = recorded.loss;
  for_each_tensor(loss, [](at::Tensor& tensor) { tensor = tensor.clone(); });
  return loss;
}

// What is computed on the host is not computed again.
void GradientStep::expect_on_device(TaskLoss& loss) const {
  for_each_tensor(loss, [this](at::Tensor& tensor) {
    if (tensor.device() == world_.device()) return;
    throw InvalidArgument(concat("cuda_graph: a tensor of the loss function's result is on ",
                                 tensor.device(), ", and would stay as it is; compute it on ",
                                 world_.device(), " (torch::full, where it is a constant)"));
  });
}

// A number of the host's stays what it was when it was recorded.
void GradientStep::watch_counts(const TaskLoss& loss) {
  const auto watch = [&](const std::string& name, double count, const std::string& advice) {
    const double before = counts_seen_.try_emplace(name, count).first->second;
    if (before == count) return;
    counts_seen_[name] = NAN;
    if (!graphs_->records()) return;
    throw InvalidArgument(concat("cuda_graph: the count of ", name.empty() ? "the loss" : name,
                                 " differs from batch to batch, and would stay as it is; ",
                                 advice));
  };
  if (loss.count && !loss.counted.defined()) {
    watch("", *loss.count, "give LossSum::counted, a tensor");
  }
  for (const auto& [name, metric] : loss.metrics) {
    watch(name, metric.count, "leave the metric to an evaluation");
  }
}

// Before anything else waits for the device, which has no time-out.
void GradientStep::await_reduced(std::int64_t step) {
  if (share_.slots == 1) return;
  const std::chrono::milliseconds limit = world_.group().impl()->timeout;
  if (graphs_->await(limit)) return;
  throw Timeout(concat("step ", step, ": the gradients were not reduced within ", limit.count(),
                       " ms; a rank hangs or is lost"));
}

void GradientStep::backward_of_slot(const std::vector<StepBatch>& batches, std::size_t first,
                                    std::size_t last, std::int64_t step, const Weights& weights,
                                    const ScaleLoss& scale_loss, bool reduce, SlotLoss& total) {
  const at::Device device = world_.device();
  for (std::size_t i = first; i < last; ++i) {
    const StepBatch& batch = batches[i];
    // The gradients of all micro-batches are added here before they are sent.
    std::optional<NoSync> local;
    std::optional<ShardedNoSync> local_in_parts;
    const bool reduces = reduce && i + 1 == last;
    if (task_.engine() != nullptr && !reduces) local.emplace(*task_.engine());
    if (task_.sharded() != nullptr && !reduces) local_in_parts.emplace(*task_.sharded());
    const RandomScope random({.seed = options_.seed,
                              .step = step,
                              .slot = batch.address.slot,
                              .micro_batch = batch.address.micro_batch},
                             device);
    TaskLoss loss;
    const bool recorded = reduce && graphs_ != nullptr && graphs_->is_usual();
    if (recorded) {
      loss = replay(i, batch, weights, {.first = i == first, .last = reduces});
      if (reduces) await_reduced(step);
    } else {
      loss = forward([&] { return task_.forward(i); });
      clock_.mark(&StepTimes::forward);
      backward(scale_loss(objective(loss, batch, weights)));
    }
    clock_.mark(&StepTimes::backward);
    if (const auto waited = reduced_since(reduces && !recorded)) {
      clock_.move(&StepTimes::backward, &StepTimes::reduce, *waited);
    }
    total.add(loss, batch.samples);
  }
}

StepGradients GradientStep::compute(StepTransactions::Step& transaction,
                                    const std::vector<StepBatch>& batches, std::int64_t step,
                                    const ScaleLoss& scale_loss) {
  const Weights weights = weights_of(batches);
  StepGradients result{.slots = {},
                       .samples = weights.samples,
                       .knows_all_samples = sized_,
                       .divide_by_count = counts_};
  zero_grad();
  if (graphs_ != nullptr) {
    const StepKind kind = kind_of(batches, weights);
    if (!graphs_->is_recorded()) recorded_.clear();  // gradients of the step before
    graphs_->begin_step(kind);
  }
  if (slot_gradients_) slot_gradients_->discard();
  for (std::size_t first = 0; first < batches.size();) {
    const std::size_t last = end_of_slot(batches, first);
    if (first > 0) transaction.next_slot();
    backward_of_slot(batches, first, last, step, weights, scale_loss, /*reduce=*/true,
                     result.slots.emplace_back());
    if (slot_gradients_) slot_gradients_->put_aside();
    first = last;
  }
  if (slot_gradients_) slot_gradients_->reduce();
  clock_.mark(&StepTimes::reduce);
  return result;
}

std::optional<std::string> GradientStep::find_non_finite(StepTransactions::Step& transaction,
                                                         const std::vector<StepBatch>& batches,
                                                         std::int64_t step,
                                                         const ScaleLoss& scale_loss) {
  const Weights weights = weights_of(batches);
  for (std::size_t first = 0; first < batches.size();) {
    const std::size_t last = end_of_slot(batches, first);
    transaction.next_slot();
    zero_grad();
    SlotLoss ignored;
    backward_of_slot(batches, first, last, step, weights, scale_loss, /*reduce=*/false, ignored);
    if (auto name = non_finite_gradient(parameters_)) return name;
    first = last;
  }
  return std::nullopt;
}

}  // namespace lockstep
