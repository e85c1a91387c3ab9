// How TrainerCore does one step: gradients, the decision whether to apply them, the commit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "comm/recovery.h"
#include "control/progress_meter.h"
#include "lockstep/clip_grad.h"
#include "train/evaluation.h"
#include "train/gradient_norm.h"
#include "train/trainer_core.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// The columns of what ranks tell each other in talk(); metrics follow, a sum and a count each.
enum Column {
  kLossSum,
  kCount,
  kTimeLimit,
  kLauncher,
  kSignal,
  kCallback,
  kSteps,
  kSamples,
  kFirstMetric,
};

constexpr std::chrono::milliseconds kTalkEvery{250};
constexpr std::int64_t kMostStepsBetweenTalks = 1000;
constexpr double kSmallestScale = 0x1p-30;

// Where it is already, if it is.
void set_number(at::Tensor& number, double value, c10::Device device) {
  if (!number.defined()) number = at::empty({}, at::TensorOptions(at::kFloat).device(device));
  number.fill_(value);
}

}  // namespace

void TrainerCore::train_step(const std::vector<StepBatch>& batches) {
  RunPosition& position = state_->position;
  world_.report(position.step, kComputePhase);
  profiler_->before_step(position.step);
  state_->schedule().apply(state_->optimizer(), position.step);
  GradScaler* scaler = state_->scaler();
  const GradientStep::ScaleLoss scale_loss = [scaler](const at::Tensor& loss) {
    return scaler != nullptr ? scaler->scale(loss) : loss;
  };

  if (const auto& compression = state_->compression()) compression->abort();  // of a step cut short
  auto transaction = transactions_->begin();
  const StepGradients gradients =
      gradients_->compute(transaction, batches, position.step, scale_loss);
  const bool log = logs(position.step);
  // A callback that wants to stop is heard at once, so that it stops the same step in every run.
  const bool talks = gradients.divide_by_count || log || position.step >= next_talk_ ||
                     !options_.callbacks.empty();
  std::optional<Totals> totals;
  if (talks) totals = talk(gradients);
  samples_in_step_ = gradients.knows_all_samples ? gradients.samples : totals->samples;
  clock_.mark(&StepTimes::reduce);

  StepArguments arguments;
  if (graphs_ != nullptr) arguments.lr = rates_for_update();
  const double norm = normalize(gradients, totals, arguments);
  const bool finite = std::isfinite(norm);
  StepReport report{.lr = state_->optimizer().lr(), .grad_norm = norm, .skipped = !finite};
  if (finite) {
    commit_step(transaction, arguments);
    if (graphs_ != nullptr) graphs_->end_step();
    watch_recording();
  } else {
    on_non_finite(transaction, batches, scale_loss);
    if (reason_) return;
  }
  clock_.mark(&StepTimes::update);
  if (const auto times = clock_.end_step()) tell_launcher(*times);
  advance(batches, totals);
  world_.report(position.step, "report");  // to the profiler, callbacks, curves
  profiler_->after_step(position.step - 1);
  report.step = position.step;
  report.epoch = position.epoch;
  report.step_in_epoch = position.step_in_epoch;
  if (log && totals) {
    report.loss = totals->loss_sum / totals->count;
    report.metrics = totals->metrics;
    report.times = clock_.take();
  }
  after_step(report);
}

// The launcher compares the ranks: by slot, because one that has several is not slow.
void TrainerCore::tell_launcher(const StepTimes& times) {
  ProgressMeter* meter = meter_of(world_);
  if (meter == nullptr) return;
  const auto rounded = [](double seconds) {
    return std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
  };
  const double compute = times.forward + times.backward + times.update;
  meter->add_step({.steps = 1,
                   .data = rounded(times.data / share_.count()),
                   .compute = rounded(compute / share_.count()),
                   .waiting = rounded(times.reduce)});
}

// Makes the gradients those of the mean, clips them, and returns their norm before clipping.
double TrainerCore::normalize(const StepGradients& gradients, const std::optional<Totals>& totals,
                              StepArguments& arguments) {
  GradScaler* scaler = state_->scaler();
  Optimizer& optimizer = state_->optimizer();
  const std::vector<NamedParameter>& parameters = state_->parameters();
  if (scaler != nullptr) scaler->unscale(optimizer);
  // The gradients are the mean over slots of gradients of sums.
  const double divisor = gradients.divide_by_count ? totals->count / share_.slots : 1.0;
  if (divisor == 0) {
    throw InvalidArgument(
        concat("step ", state_->position.step, ": the loss function counted nothing on any rank"));
  }
  if (ShardedEngine* sharded = task_.sharded()) {
    const bool clips = options_.clip_grad_norm > 0;
    const double limit = clips ? options_.clip_grad_norm : std::numeric_limits<double>::infinity();
    const double norm =
        sharded->clip_grad_norm({.max_norm = limit, .scale = clips ? 1 / divisor : 1.0})
            .item<double>();
    if (clips) return norm;
    // Of a small model a rank may have no part, and still a copy of one.
    const bool copies = parameters.empty() && sharded->keeps_copy();
    const auto& held = copies ? sharded->parameters(ShardPart::copied) : parameters;
    if (divisor != 1 && !held.empty()) {
      arguments.grad_scale =
          at::full({}, divisor, at::TensorOptions(at::kFloat).device(held.front().tensor.device()));
    }
    return norm / divisor;
  }
  if (graphs_ != nullptr || is_updated_by_own_kernel()) {
    return normalize_for_update(gradients.divide_by_count ? std::optional(divisor) : std::nullopt,
                                arguments);
  }
  if (options_.clip_grad_norm > 0) {
    return clip_grad_norm(parameters, {.max_norm = options_.clip_grad_norm, .scale = 1 / divisor})
        .item<double>();
  }
  const double norm = gradient_norm(parameters) / divisor;
  if (divisor != 1 && scaler != nullptr) {
    scale_gradients(parameters, 1 / divisor);
  } else if (divisor != 1) {
    arguments.grad_scale =
        at::full({}, divisor, at::TensorOptions(at::kFloat).device(world_.device()));
  }
  return norm;
}

// Our own kernel multiplies gradients on the way; ATen's divides them on the way, and only so.
bool TrainerCore::is_updated_by_own_kernel() const {
  const auto is_float = [](const NamedParameter& parameter) {
    return parameter.tensor.scalar_type() == at::kFloat;
  };
  return world_.device().is_cuda() && state_->scaler() == nullptr &&
         std::holds_alternative<AdamWOptions>(options_.optimizer) &&
         std::ranges::all_of(state_->parameters(), is_float);
}

// Leaves what gradients count with to who uses them, in tensors, where what is recorded finds it.
// The arithmetic is that of a step of the same optimizer that is not recorded.
double TrainerCore::normalize_for_update(std::optional<double> divisor, StepArguments& arguments) {
  const at::NoGradGuard no_grad;
  Numbers& here = step_numbers();
  const bool clips = options_.clip_grad_norm > 0;
  const bool multiplies = clips || is_updated_by_own_kernel();
  if (divisor) {
    set_number(here.divisor_inverse, 1 / *divisor, world_.device());
    if (!multiplies) set_number(here.divisor, *divisor, world_.device());
  }
  part_of_step("norm", [&] {
    here.norm = grad_norm(state_->parameters()).to(at::kFloat);
    if (divisor) here.norm = here.norm.mul(here.divisor_inverse);
    if (clips) {
      here.grad_factor = clip_factor(here.norm, options_.clip_grad_norm);
      if (divisor) here.grad_factor = here.grad_factor.mul(here.divisor_inverse);
    } else if (multiplies) {
      here.grad_factor = here.divisor_inverse;
    }
  });
  arguments.grad_factor = here.grad_factor;
  arguments.grad_scale = here.divisor;
  return here.norm.item<double>();
}

// Once, where nothing comes of an option that was set.
void TrainerCore::watch_recording() {
  constexpr int kPatience = 50;
  if (graphs_ == nullptr || graphs_->is_recorded() || ++steps_unrecorded_ != kPatience) return;
  say(concat("lockstep: cuda_graph: after ", kPatience,
             " steps none is recorded: their batches have other sizes each time; bring them to "
             "one (padding, drop_last)"));
}

// A graph would not see numbers of the host's change.
std::vector<at::Tensor> TrainerCore::rates_for_update() {
  const Optimizer& optimizer = state_->optimizer();
  std::vector<at::Tensor>& rates = step_numbers().lr;
  rates.resize(optimizer.groups().size());
  for (std::size_t group = 0; group < rates.size(); ++group) {
    set_number(rates[group], optimizer.lr(group), world_.device());
  }
  return rates;
}

void TrainerCore::part_of_step(const std::string& name, const std::function<void()>& work) {
  graphs_ != nullptr ? graphs_->run(name, work) : work();
}

void TrainerCore::commit_step(StepTransactions::Step& transaction, const StepArguments& arguments) {
  if (const auto& compression = state_->compression()) compression->mirror(world_.group());
  const auto update = [&] {
    if (const auto& compression = state_->compression()) compression->commit();
    if (GradScaler* scaler = state_->scaler()) {
      scaler->step(state_->optimizer());
      scaler->update();
    } else {
      part_of_step("update", [&] { state_->update(arguments); });
    }
    if (Ema* ema = state_->ema()) ema->update();
    ++updates_;
    prepared_.reset();
  };
  if (!agrees_to_updates_) return transaction.commit(update);
  transaction.commit(update, [&] { agree_to_update(arguments); });
}

// The step's data has been used, whether or not it was committed.
void TrainerCore::advance(const std::vector<StepBatch>& batches,
                          const std::optional<Totals>& totals) {
  RunPosition& position = state_->position;
  task_.data().commit(batches.front().address.step);
  position.step += 1;
  position.step_in_epoch += 1;
  position.samples += samples_in_step_;
  ++commits_;
  counted_ += totals && task_.counts() ? totals->count : static_cast<double>(samples_in_step_);
}

void TrainerCore::on_non_finite(StepTransactions::Step& transaction,
                                const std::vector<StepBatch>& batches,
                                const GradientStep::ScaleLoss& scale_loss) {
  GradScaler* scaler = state_->scaler();
  if (scaler != nullptr) {
    // Too large a scale is a part of the method. One that has become this small helps nobody.
    const bool overflow = scaler->found_inf().item<float>() != 0;
    const bool hopeless = scaler->get_scale() < kSmallestScale;
    if (overflow && !hopeless) {
      scaler->update();
      return transaction.abort();
    }
  }
  // The reduced gradients no longer tell whose they were. Computing the step again, which gives the
  // same numbers, does; beside what is recorded there may be no memory for that.
  std::optional<std::string> parameter;
  bool searched = true;
  try {
    parameter =
        gradients_->find_non_finite(transaction, batches, state_->position.step, scale_loss);
  } catch (const c10::OutOfMemoryError&) {
    if (graphs_ == nullptr || share_.slots > 1) throw;  // others may wait for this rank
    searched = false;
  }
  transaction.abort();
  int culprit = -1;
  std::string name;
  const auto found =
      world_.group().all_gather_json(parameter ? nlohmann::json(*parameter) : nlohmann::json());
  for (std::size_t rank = 0; rank < found.size() && culprit < 0; ++rank) {
    if (found[rank].is_null()) continue;
    culprit = static_cast<int>(rank);
    name = found[rank].get<std::string>();
  }
  const std::int64_t step = state_->position.step;
  const std::string what =
      culprit >= 0 ? concat("the gradient of '", name, "' is not finite on rank ", culprit)
      : searched   ? std::string("the loss, or the sum of the ranks' gradients, is not finite")
                   : std::string(
                         "the loss, or a gradient, is not finite (there was no memory to "
                           "find out which)");
  const std::string message = concat("step ", step, ": ", what);
  if (options_.non_finite == NonFinite::raise) {
    throw NonFiniteStep(message, {.rank = culprit, .step = step, .parameter = name});
  }
  // After the last collective: until then the step may have to be computed again.
  if (scaler != nullptr) scaler->update();
  const bool stop = options_.non_finite == NonFinite::stop;
  say(concat("lockstep: ", message, stop ? "; the run stops before it" : "; the step is skipped"));
  if (stop) reason_ = StopReason::non_finite;
}

bool TrainerCore::logs(std::int64_t step) const {
  return options_.log_every > 0 && (step + 1) % options_.log_every == 0;
}

TrainerCore::Totals TrainerCore::talk(const StepGradients& gradients) {
  std::vector<std::map<std::string, SlotLoss::Sum>> metrics;
  for (const SlotLoss& slot : gradients.slots) metrics.push_back(slot.metrics());
  if (!metric_names_) {
    std::vector<std::string> names;
    for (const auto& [name, sum] : metrics.front()) names.push_back(name);
    metric_names_ = agree_on_names(world_.group(), names, "metrics in a step");
  }
  std::vector<std::vector<double>> rows;
  for (std::size_t slot = 0; slot < metrics.size(); ++slot) {
    std::vector<double>& row = rows.emplace_back(kFirstMetric, 0.0);
    const SlotLoss::Sum loss = gradients.slots[slot].loss();
    row[kLossSum] = loss.sum;
    row[kCount] = loss.count;
    bool same = metrics[slot].size() == metric_names_->size();
    for (const auto& name : *metric_names_) {
      const auto found = metrics[slot].find(name);
      same = same && found != metrics[slot].end();
      if (!same) break;
      row.push_back(found->second.sum);
      row.push_back(found->second.count);
    }
    if (!same) {
      throw InvalidArgument(concat("step ", state_->position.step,
                                   ": the loss function reports other metrics than in the first "
                                   "step; it must report the same ones every time"));
    }
  }
  std::vector<double>& flags = rows.front();
  flags[kSamples] = static_cast<double>(gradients.samples);
  const StopCause cause = stop_.cause();
  flags[kTimeLimit] = cause == StopCause::time_limit;
  flags[kLauncher] = cause == StopCause::launcher;
  flags[kSignal] = cause == StopCause::signal;
  flags[kCallback] = std::ranges::any_of(
      options_.callbacks, [](const auto& callback) { return callback->wants_to_stop(); });
  if (is_main()) {
    const std::chrono::duration<double> since = Clock::now() - last_talk_;
    const double per_step = since.count() / static_cast<double>(steps_since_talk_ + 1);
    const double steps = std::chrono::duration<double>(kTalkEvery).count() / per_step;
    flags[kSteps] = std::clamp(std::floor(steps), 1.0, double{kMostStepsBetweenTalks});
  }

  const std::vector<double> sums = sums_->add(rows);
  Totals totals{.loss_sum = sums[kLossSum],
                .count = sums[kCount],
                .samples = static_cast<std::int64_t>(sums[kSamples])};
  for (std::size_t i = 0; i < metric_names_->size(); ++i) {
    const double count = sums[kFirstMetric + 2 * i + 1];
    totals.metrics[(*metric_names_)[i]] = sums[kFirstMetric + 2 * i] / count;
  }
  take_stop_flags(sums.data());
  next_talk_ = state_->position.step + static_cast<std::int64_t>(sums[kSteps]);
  last_talk_ = Clock::now();
  steps_since_talk_ = 0;
  return totals;
}

void TrainerCore::take_stop_flags(const double* flags) {
  if (flags[kSignal] > 0 || flags[kLauncher] > 0) {
    stop_after_step_ = StopReason::preempted;
  } else if (flags[kTimeLimit] > 0) {
    stop_after_step_ = StopReason::time_limit;
  } else if (flags[kCallback] > 0) {
    stop_after_step_ = StopReason::callback;
  }
}

}  // namespace lockstep
