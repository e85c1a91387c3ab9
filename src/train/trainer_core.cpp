#include "train/trainer_core.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <ATen/ops/full.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/clip_grad.h"
#include "train/broadcast_module.h"
#include "train/evaluation.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// The columns of what ranks tell each other in talk(); metrics follow, a sum and a count each.
enum Column {
  kLossSum,
  kCount,
  kFirstFlag,
  kTimeLimit = kFirstFlag,
  kLauncher,
  kSignal,
  kCallback,
  kSteps,
  kFirstMetric
};

constexpr std::chrono::milliseconds kTalkEvery{250};
constexpr std::int64_t kMostStepsBetweenTalks = 1000;

std::string chosen_directory(const TrainerOptions& options) {
  if (!options.snapshots.directory.empty()) return options.snapshots.directory;
  const char* run = std::getenv("LOCKSTEP_RUN_DIR");
  return run != nullptr ? run : "";
}

std::vector<int> numbers(int first, int last) {
  std::vector<int> list;
  for (int number = first; number < last; ++number) list.push_back(number);
  return list;
}

}  // namespace

TrainerCore::TrainerCore(World& world, TrainingTask& task, EvaluationTask* evaluation,
                         const TrainerOptions& options)
    : world_(world),
      task_(task),
      evaluation_(evaluation),
      options_(options),
      module_(task.module()),
      last_talk_(Clock::now()) {
  const at::Device device = world_.device();
  std::optional<at::ScalarType> input_type;
  if (options_.precision == Precision::bf16_weights) input_type = at::kBFloat16;
  if (input_type) {
    module_->to(device, *input_type);
  } else {
    module_->to(device);
  }
  task_.set_input(device, input_type);
  if (evaluation_ != nullptr) evaluation_->set_input(device, input_type);

  // Before anything copies the weights: all ranks begin with those of rank 0.
  broadcast_module(world_.group(), *module_);
  state_ = std::make_unique<RunState>(module_, options_);
  open_directory();
  gradients_ = std::make_unique<GradientStep>(world_, task_, options_, share_);
  transactions_ = std::make_unique<StepTransactions>(world_.group(), module_);
  stop_ = std::make_unique<StopWatch>(world_, options_.time_limit);
  StepProfilerOptions profile = options_.profile;
  profile.rank = world_.rank();
  if (profile.folder.empty()) profile.folder = directory_;
  profiler_ = std::make_unique<StepProfiler>(profile, device);
}

TrainerCore::~TrainerCore() = default;

// Finds out where the run stands, which also decides over how many slots it is dealt.
void TrainerCore::open_directory() {
  directory_ = chosen_directory(options_);
  if (is_main() && options_.progress) {
    progress_ = std::make_unique<Progress>(ProgressOptions{.unit = options_.unit});
  }
  std::optional<Snapshot> found;
  if (!directory_.empty()) {
    snapshots_ = std::make_unique<SnapshotStore>(
        world_, SnapshotStoreOptions{.directory = directory_ + "/snapshots",
                                     .keep_last = options_.snapshots.keep_last,
                                     .background = options_.snapshots.background,
                                     .per_node = options_.snapshots.per_node,
                                     .report = [this](const std::string& line) { warn(line); }});
    if (options_.snapshots.resume) found = snapshots_->load_newest();
    if (is_main()) log_ = std::make_unique<MetricsLog>(directory_ + "/metrics/rank_0.jsonl");
  }
  if (found && options_.slots != 0 && options_.slots != found->slots) {
    throw InvalidArgument(concat("slots is ", options_.slots, ", but the run in ", directory_,
                                 " has ", found->slots, "; leave it out to go on with those"));
  }
  share_out(found ? found->slots : options_.slots ? options_.slots : world_.world_size());
  if (found) {
    state_->restore(*found);
    saved_ = result_.resumed_from = found->step;
    log_lines_ = found->parts.at("trainer").values.value("log_lines", std::int64_t{0});
    const RunPosition& position = state_->position;
    say(concat("lockstep: goes on from step ", position.step, " (epoch ", position.epoch, ", step ",
               position.step_in_epoch, " of it) in ", directory_));
  }
  if (!found) {
    state_->position.epoch = options_.first_epoch;
    state_->position.step = options_.first_epoch * task_.data().steps_per_epoch().value_or(0);
  }
  if (log_) log_->keep(log_lines_);
}

void TrainerCore::share_out(int slots) {
  if (slots < world_.world_size()) {
    throw InvalidArgument(concat(world_.world_size(), " processes for ", slots,
                                 " slots; some would have nothing to compute. A run has as many "
                                 "slots as it had processes at first; start at most that many"));
  }
  share_ = SlotShare::of(slots, world_.rank(), world_.world_size());
  sums_ = std::make_unique<SlotSums>(world_.group(), share_);
  const std::vector<int> mine = numbers(share_.first, share_.last);
  task_.data().deal({.slots = slots, .mine = mine, .accumulate = options_.accumulate});
  if (evaluation_ != nullptr) evaluation_->data().deal({.slots = slots, .mine = mine});
}

TrainResult TrainerCore::run() {
  module_->train();
  for (const auto& callback : options_.callbacks) callback->on_start(state_->position.step);
  while (!reason_) run_epoch();
  finish();
  return result_;
}

void TrainerCore::run_epoch() {
  RunPosition& position = state_->position;
  if ((options_.epochs && position.epoch >= *options_.epochs) ||
      (options_.steps && position.step >= *options_.steps)) {
    reason_ = StopReason::finished;
    return;
  }
  // What a source that cannot go back delivered before is gone; it goes on with what comes.
  const bool replayable = task_.data().replayable();
  task_.data().begin_epoch(position.epoch, replayable ? position.step_in_epoch : 0);
  const std::int64_t first = position.step;
  for (;;) {
    const std::vector<StepBatch> batches = task_.fetch_step();
    if (!all_have_data(batches)) break;
    train_step(batches);
    if (reason_) return;
    if (options_.steps && position.step >= *options_.steps) break;
  }
  const auto all = task_.data().steps_per_epoch(position.epoch);
  if (position.step == 0 && position.epoch == options_.first_epoch) {
    throw InvalidArgument(
        "the loader delivers no batch: the dataset is empty, or drop_last leaves "
        "nothing of it");
  }
  if (all && position.step_in_epoch < *all) return;  // the steps ended in mid-epoch
  if (!all && position.step == first) {
    reason_ = StopReason::finished;  // a stream that has ended for good
    return;
  }
  position.epoch += 1;
  position.step_in_epoch = 0;
  after_epoch();
}

// A dataset ends for all slots at the same step. A stream may end here and go on elsewhere.
bool TrainerCore::all_have_data(const std::vector<StepBatch>& batches) {
  if (task_.data().steps_per_epoch()) return !batches.empty();
  std::vector<std::vector<double>> rows;
  for (int slot = share_.first; slot < share_.last; ++slot) {
    const bool has = std::ranges::any_of(
        batches, [slot](const StepBatch& batch) { return batch.address.slot == slot; });
    rows.push_back({has ? 1.0 : 0.0});
  }
  return sums_->add(rows).front() == share_.slots;
}

void TrainerCore::train_step(const std::vector<StepBatch>& batches) {
  RunPosition& position = state_->position;
  world_.report(position.step, "train");
  profiler_->before_step(position.step);
  state_->schedule().apply(state_->optimizer(), position.step);
  GradScaler* scaler = state_->scaler();
  const GradientStep::ScaleLoss scale_loss = [scaler](const at::Tensor& loss) {
    return scaler != nullptr ? scaler->scale(loss) : loss;
  };

  auto transaction = transactions_->begin();
  const StepGradients gradients =
      gradients_->compute(transaction, batches, position.step, scale_loss);
  samples_in_step_ = gradients.samples;
  const bool log = logs(position.step);
  std::optional<Totals> totals;
  if (gradients.divide_by_count || log || position.step >= next_talk_) totals = talk(gradients);

  StepArguments arguments;
  const double norm = normalize(gradients, totals, arguments);
  const bool finite = std::isfinite(norm) && (!totals || std::isfinite(totals->loss_sum));
  StepReport report{.lr = state_->optimizer().lr(), .grad_norm = norm, .skipped = !finite};
  if (finite) {
    commit_step(transaction, arguments);
  } else {
    on_non_finite(transaction, batches, scale_loss);
    if (reason_) return;
  }
  advance(batches, totals);
  profiler_->after_step(position.step - 1);
  report.step = position.step;
  report.epoch = position.epoch;
  report.step_in_epoch = position.step_in_epoch;
  if (log && totals) {
    report.loss = totals->loss_sum / totals->count;
    report.metrics = totals->metrics;
  }
  after_step(report);
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
  if (options_.clip_grad_norm > 0) {
    return clip_grad_norm(parameters, {.max_norm = options_.clip_grad_norm, .scale = 1 / divisor})
        .item<double>();
  }
  const double norm = grad_norm(parameters).item<double>() / divisor;
  if (divisor != 1 && scaler != nullptr) {
    scale_gradients(parameters, 1 / divisor);
  } else if (divisor != 1) {
    arguments.grad_scale =
        at::full({}, divisor, at::TensorOptions(at::kFloat).device(world_.device()));
  }
  return norm;
}

void TrainerCore::commit_step(StepTransactions::Step& transaction, const StepArguments& arguments) {
  transaction.commit([&] {
    if (GradScaler* scaler = state_->scaler()) {
      scaler->step(state_->optimizer());
      scaler->update();
    } else {
      state_->optimizer().step(arguments);
    }
    if (Ema* ema = state_->ema()) ema->update();
  });
}

// The step's data has been used, whether or not it was committed.
void TrainerCore::advance(const std::vector<StepBatch>& batches,
                          const std::optional<Totals>& totals) {
  RunPosition& position = state_->position;
  task_.data().commit(batches.front().address.step);
  position.step += 1;
  position.step_in_epoch += 1;
  position.samples += samples_in_step_;
  counted_ += totals && task_.counts() ? totals->count : static_cast<double>(samples_in_step_);
}

void TrainerCore::on_non_finite(StepTransactions::Step& transaction,
                                const std::vector<StepBatch>& batches,
                                const GradientStep::ScaleLoss& scale_loss) {
  if (GradScaler* scaler = state_->scaler()) {
    transaction.abort();
    scaler->update();  // too large a scale is a part of the method
    return;
  }
  // The reduced gradients no longer tell whose they were. Computing the step again, which gives the
  // same numbers, does.
  const auto parameter =
      gradients_->find_non_finite(transaction, batches, state_->position.step, scale_loss);
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
                   : std::string("the loss, or the sum of the ranks' gradients, is not finite");
  const std::string message = concat("step ", step, ": ", what);
  if (options_.non_finite == NonFinite::raise) {
    throw NonFiniteStep(message, {.rank = culprit, .step = step, .parameter = name});
  }
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
    for (const auto& name : *metric_names_) {
      const SlotLoss::Sum metric = metrics[slot][name];
      row.push_back(metric.sum);
      row.push_back(metric.count);
    }
    if (metrics[slot].size() != metric_names_->size()) {
      throw InvalidArgument(concat("step ", state_->position.step,
                                   ": the loss function reports other metrics than in the first "
                                   "step; it must report the same ones every time"));
    }
  }
  std::vector<double>& flags = rows.front();
  const StopCause cause = stop_->cause();
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
  Totals totals{.loss_sum = sums[kLossSum], .count = sums[kCount]};
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

bool TrainerCore::due(const Every& every, std::int64_t Every::*unit, std::int64_t value) const {
  return every.*unit > 0 && value > 0 && value % (every.*unit) == 0;
}

void TrainerCore::after_step(const StepReport& report) {
  ++steps_since_talk_;
  if (report.loss) {
    result_.loss = report.loss;
    nlohmann::json values = {{"loss", *report.loss},
                             {"lr", report.lr},
                             {"grad_norm", report.grad_norm},
                             {"epoch", report.epoch}};
    for (const auto& [name, value] : report.metrics) values[name] = value;
    write_log(values);
  }
  show_progress();
  for (const auto& callback : options_.callbacks) callback->on_step(report);
  if (due(options_.evaluate_every, &Every::steps, report.step)) evaluate_now();
  if (due(options_.snapshots.every, &Every::steps, report.step)) save(/*best=*/false);
  if (!reason_) reason_ = stop_after_step_;
}

void TrainerCore::after_epoch() {
  const std::int64_t done = state_->position.epoch;
  for (const auto& callback : options_.callbacks) callback->on_epoch_end(done - 1);
  if (due(options_.evaluate_every, &Every::epochs, done)) evaluate_now();
  if (due(options_.snapshots.every, &Every::epochs, done)) save(/*best=*/false);
}

void TrainerCore::evaluate_now() {
  if (evaluation_ == nullptr) return;
  const std::int64_t step = state_->position.step;
  world_.report(step, "evaluate");
  std::map<std::string, double> metrics;
  {
    std::optional<Ema::Swapped> average;
    if (state_->ema() != nullptr) average.emplace(*state_->ema());
    metrics = evaluate(world_, *module_, *evaluation_, options_, share_, *sums_, step);
  }
  nlohmann::json values;
  result_.evaluation.clear();
  for (const auto& [name, value] : metrics) {
    result_.evaluation["eval/" + name] = value;
    values["eval/" + name] = value;
  }
  write_log(values);
  std::string line = concat("lockstep: step ", step, ":");
  for (const auto& [name, value] : result_.evaluation) line += concat(" ", name, " ", value);
  if (options_.progress) say(line);
  for (const auto& callback : options_.callbacks) callback->on_evaluation(step, result_.evaluation);

  MetricWatch& watch = state_->watch();
  const auto watched = result_.evaluation.find(watch.options().metric);
  if (watched == result_.evaluation.end()) {
    if (!watch.options().patience && !options_.snapshots.keep_best) return;
    throw InvalidArgument(concat("watch.metric is '", watch.options().metric,
                                 "', which the evaluation does not report"));
  }
  state_->schedule().observe(state_->optimizer(), watched->second);
  const bool best = watch.report(step, watched->second);
  if (best && options_.snapshots.keep_best) save(/*best=*/true);
  if (watch.should_stop()) reason_ = StopReason::early_stopped;
}

void TrainerCore::save(bool best) {
  if (!snapshots_) return;
  const std::int64_t step = state_->position.step;
  world_.report(step, "save");
  Snapshot snapshot = state_->snapshot(share_, world_.epoch());
  snapshot.parts["trainer"].values["log_lines"] = log_lines_;
  snapshots_->save(snapshot, {.best = best});
  saved_ = step;
  for (const auto& callback : options_.callbacks) callback->on_save(step);
}

void TrainerCore::write_log(const nlohmann::json& values) {
  if (directory_.empty()) return;
  ++log_lines_;
  if (log_) log_->append(state_->position.step, values);
}

void TrainerCore::show_progress() {
  if (progress_ && progress_->due()) progress_->update(progress_state());
}

ProgressState TrainerCore::progress_state() const {
  const RunPosition& position = state_->position;
  ProgressState progress{.step = position.step,
                         .epoch = position.epoch + 1,
                         .total_epochs = options_.epochs,
                         .count = static_cast<std::int64_t>(counted_),
                         .flops_per_count = options_.flops_per_count,
                         .peak_flops = options_.peak_flops * world_.world_size()};
  if (progress.total_epochs) progress.epoch = std::min(*progress.epoch, *progress.total_epochs);
  progress.total_steps = options_.steps;
  const auto steps = task_.data().steps_per_epoch();
  if (options_.epochs && steps) {
    const std::int64_t by_epochs = *options_.epochs * *steps;
    progress.total_steps = std::min(by_epochs, options_.steps.value_or(by_epochs));
  }
  if (result_.loss) progress.values.emplace_back("loss", *result_.loss);
  return progress;
}

void TrainerCore::say(const std::string& text) {
  if (is_main()) warn(text);
}

void TrainerCore::warn(const std::string& text) {
  if (progress_) {
    progress_->say(text);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

void TrainerCore::finish() {
  const RunPosition& position = state_->position;
  if (progress_) progress_->finish(progress_state());
  const bool resumable = *reason_ == StopReason::preempted || *reason_ == StopReason::time_limit;
  if ((options_.snapshots.at_end || resumable) && saved_ != position.step) save(/*best=*/false);
  if (snapshots_) {
    world_.report(position.step, "save");
    snapshots_->wait();
  }
  // No rank leaves before all have done their last step, or the slow ones would miss a peer.
  world_.barrier();
  result_.reason = *reason_;
  result_.step = position.step;
  result_.epoch = position.epoch;
  result_.best = state_->watch().best();
  result_.best_step = state_->watch().best_step();
  for (const auto& callback : options_.callbacks) callback->on_end(result_);
  if (*reason_ == StopReason::preempted && options_.on_preemption == OnPreemption::raise) {
    throw Preempted(concat("lockstep: stopped by ", stop_->what(), " after step ", position.step,
                           snapshots_ ? concat("; saved in ", directory_)
                                      : "; nothing was saved: "
                                        "no directory for snapshots was given"));
  }
}

}  // namespace lockstep
