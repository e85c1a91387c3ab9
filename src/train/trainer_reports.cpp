// What TrainerCore does beside the steps: reports, evaluates, saves, ends.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <variant>

#include "comm/recovery.h"
#include "train/evaluation.h"
#include "train/loader_facts.h"
#include "train/trainer_core.h"

namespace lockstep {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

const char* reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::finished:
      return "finished";
    case StopReason::early_stopped:
      return "early_stopped";
    case StopReason::time_limit:
      return "time_limit";
    case StopReason::preempted:
      return "preempted";
    case StopReason::callback:
      return "callback";
    case StopReason::non_finite:
      return "non_finite";
  }
  return "";
}

}  // namespace

bool TrainerCore::due(const Every& every, std::int64_t Every::*unit, std::int64_t value) const {
  return every.*unit > 0 && value > 0 && value % (every.*unit) == 0;
}

void TrainerCore::after_step(const StepReport& report) {
  ++steps_since_talk_;
  if (report.loss) result_.loss = report.loss;
  RunEvent event{.kind = RunEvent::Kind::step, .step = report.step, .report = report};
  if (report.loss && !directory_.empty()) {
    event.log = {{"loss", *report.loss},
                 {"lr", report.lr},
                 {"grad_norm", report.grad_norm},
                 {"epoch", report.epoch}};
    for (const auto& [name, value] : report.metrics) event.log[name] = value;
    for (const auto& callback : options_.callbacks) {
      for (const auto& [name, value] : callback->log_values(report)) event.log[name] = value;
    }
  }
  show_progress();
  // After the last step of an epoch these wait until the epoch has ended, so that a snapshot of it
  // knows of its evaluation.
  if (!is_epoch_complete()) {
    duties_ = {.compare = compares_after(report.step),
               .evaluate = due(options_.evaluate_every, &Every::steps, report.step),
               .save = due(options_.snapshots.every, &Every::steps, report.step)};
  }
  record(std::move(event));
  settle();
}

void TrainerCore::after_epoch() {
  const std::int64_t epochs = state_->position.epoch, steps = state_->position.step;
  world_.report(steps, "report");
  const auto is_due = [&](const Every& every) {
    return due(every, &Every::epochs, epochs) || due(every, &Every::steps, steps);
  };
  duties_ = {.compare = compares_after(steps),
             .evaluate = is_due(options_.evaluate_every),
             .save = is_due(options_.snapshots.every)};
  record({.kind = RunEvent::Kind::epoch_end, .step = steps, .epoch = epochs - 1});
  settle();
}

// Does what is to be done before the next step; goes on where it was interrupted.
void TrainerCore::settle() {
  if (duties_.compare) {
    compare_replicas();
    duties_.compare = false;
  }
  if (duties_.evaluate) {
    bool best = false;
    const auto evaluate = [&] {
      best = evaluation_ != nullptr && evaluate_now() && options_.snapshots.keep_best;
    };
    // Ranks have different numbers of batches, and callbacks of one rank may ask the model, too.
    if (ShardedEngine* sharded = task_.sharded(); sharded != nullptr && evaluation_ != nullptr) {
      sharded->with_whole_parameters(evaluate);
    } else {
      evaluate();
    }
    duties_ = {.evaluate = false, .save = duties_.save || best, .best = best};
  }
  if (duties_.save) {
    save(duties_.best);
    // Once the run goes on, the best weights are nowhere but in the memory of who writes them, who
    // may die. Other snapshots can be replaced by a later one.
    if (duties_.best && recovers_ && snapshots_) {
      await_disk();
      world_.barrier();
    }
    duties_ = {};
  }
  if (!reason_) reason_ = stop_after_step_;
}

// Returns whether the watched metric is the best so far.
bool TrainerCore::evaluate_now() {
  const std::int64_t step = state_->position.step;
  world_.report(step, "evaluate");
  const auto begin = std::chrono::steady_clock::now();
  std::map<std::string, double> metrics;
  {
    std::optional<Ema::Swapped> average;
    if (state_->ema() != nullptr) average.emplace(*state_->ema());
    metrics = evaluate(world_, *module_, *evaluation_, options_, share_, *sums_, step);
  }
  pauses_.evaluate += seconds_since(begin);
  ++commits_;
  RunEvent event{.kind = RunEvent::Kind::evaluation, .step = step};
  result_.evaluation.clear();
  for (const auto& [name, value] : metrics) result_.evaluation["eval/" + name] = value;
  for (const auto& callback : options_.callbacks) {
    result_.evaluation.merge(callback->evaluation_values(result_.evaluation));
  }
  event.evaluation = result_.evaluation;
  if (!directory_.empty()) event.log = result_.evaluation;
  std::string line = concat("lockstep: step ", step, ":");
  for (const auto& [name, value] : result_.evaluation) line += concat(" ", name, " ", value);
  if (options_.progress) say(line);
  const bool best = watch_evaluation();
  record(std::move(event));
  return best;
}

// Lets the schedule and the watch see the evaluation; whether it is the best so far.
bool TrainerCore::watch_evaluation() {
  MetricWatch& watch = state_->watch();
  const auto watched = result_.evaluation.find(watch.options().metric);
  if (watched == result_.evaluation.end()) {
    const bool needed = watch.options().patience || options_.snapshots.keep_best ||
                        std::holds_alternative<PlateauSchedule>(options_.schedule);
    if (!needed) return false;
    throw InvalidArgument(concat("watch.metric is '", watch.options().metric,
                                 "', which the evaluation does not report"));
  }
  state_->schedule().observe(state_->optimizer(), watched->second);
  const bool best = watch.report(state_->position.step, watched->second);
  if (watch.should_stop()) reason_ = StopReason::early_stopped;
  return best;
}

void TrainerCore::save(bool best) {
  if (!snapshots_) return;
  const std::int64_t step = state_->position.step;
  world_.report(step, "save");
  const auto begin = std::chrono::steady_clock::now();
  curves_.flush();  // a run that goes on from the snapshot finds all lines before it
  Snapshot snapshot = state_->snapshot(share_, world_.epoch());
  if (const auto& compression = state_->compression(); compression && share_.one_each()) {
    snapshot.parts["compression"] = compression->gather(world_.group());
  }
  nlohmann::json& values = snapshot.parts["trainer"].values;
  values["log_lines"] = log_lines_;
  values["data"] = facts_of(task_.data());
  {
    const MeteredWait disk(meter_of(world_), "disk");
    snapshots_->save(snapshot, {.best = best});
  }
  saved_ = {step, state_->position.epoch};
  saved_best_ = best;
  const double seconds = seconds_since(begin);
  pauses_.save += seconds;
  curves_.event("snapshot", {{"step", step}, {"best", best}, {"paused_s", seconds}});
  for (const auto& callback : options_.callbacks) callback->on_save(step);
}

void TrainerCore::record(RunEvent event) {
  event.commit = commits_;
  if (!event.log.is_null()) ++log_lines_;
  journal_.add(event);
  tell(event);
}

// With what is this rank's own: where its time went, in milliseconds.
nlohmann::json TrainerCore::line_of(const RunEvent& event) {
  nlohmann::json line = event.log;
  if (event.kind != RunEvent::Kind::step) return line;
  if (const auto& times = event.report.times) {
    line["time/data"] = 1000 * times->data;
    line["time/forward"] = 1000 * times->forward;
    line["time/backward"] = 1000 * times->backward;
    line["time/reduce"] = 1000 * times->reduce;
    line["time/update"] = 1000 * times->update;
    line["time/total"] = 1000 * times->total;
  }
  const Pauses pauses = std::exchange(pauses_, {});
  if (pauses.save > 0) line["time/save"] = 1000 * pauses.save;
  if (pauses.evaluate > 0) line["time/evaluate"] = 1000 * pauses.evaluate;
  return line;
}

void TrainerCore::introduce_tracker() {
  if (introduced_ == curves_.tracker()) return;
  introduced_ = curves_.tracker();
  for (const auto& callback : options_.callbacks) callback->on_tracker(introduced_);
}

// After the commit of what it tells; a rank that has taken over the state of others tells what they
// have told.
void TrainerCore::tell(const RunEvent& event) {
  if (!event.log.is_null()) curves_.append(event.step, line_of(event));
  for (const auto& callback : options_.callbacks) {
    switch (event.kind) {
      case RunEvent::Kind::step:
        callback->on_step(event.report);
        break;
      case RunEvent::Kind::epoch_end:
        callback->on_epoch_end(event.epoch);
        break;
      case RunEvent::Kind::evaluation:
        callback->on_evaluation(event.step, event.evaluation);
        break;
    }
  }
}

// Of rank 0, which may be another process after a recovery.
void TrainerCore::assume_role() {
  const bool shows = is_main() && options_.progress;
  if (shows == (progress_ != nullptr)) return;
  if (snapshots_) await_disk();  // its thread reports there
  progress_ = shows ? std::make_unique<Progress>(ProgressOptions{.unit = options_.unit}) : nullptr;
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
  if (!is_main()) return;
  curves_.console(text);
  warn(text);
}

void TrainerCore::warn(const std::string& text) {
  if (progress_) {
    progress_->say(text);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

// Whether the last save has come to the disk. Every rank calls it.
bool TrainerCore::is_saved() {
  if (!snapshots_) return false;
  await_disk();
  const bool saved = is_main() && snapshots_->last_error().empty() &&
                     snapshots_->last_saved() == state_->position.step;
  return world_.group().broadcast_json(saved).get<bool>();
}

// A disk may be slow. The launcher would take a rank for one that hangs.
void TrainerCore::await_disk() const {
  const MeteredWait disk(meter_of(world_), "disk");
  snapshots_->wait();
}

void TrainerCore::finish() {
  const RunPosition& position = state_->position;
  world_.report(position.step, "finish");
  if (progress_) progress_->finish(progress_state());
  const bool to_be_continued = *reason_ == StopReason::preempted ||
                               *reason_ == StopReason::time_limit ||
                               *reason_ == StopReason::non_finite;
  const bool wants_to_save = snapshots_ && (options_.snapshots.at_end || to_be_continued);
  bool saved = false;
  if (wants_to_save) {
    const bool is_there = saved_ == std::pair(position.step, position.epoch);
    const bool resumed_here = is_there && result_.resumed_from == position.step;
    if (!is_there) save(/*best=*/false);
    saved = resumed_here || is_saved();
    if (!saved) {  // what was wrong may have passed, or another process was rank 0 then
      save(/*best=*/is_there && saved_best_);
      saved = is_saved();
    }
    result_.saved = saved;
    if (!saved) {
      say(concat("lockstep: the run ends with step ", position.step,
                 ", which is not on the disk; the last step that was saved is the newest in ",
                 directory_, "/snapshots"));
    }
  } else if (snapshots_) {
    await_disk();
  }
  if (ShardedEngine* sharded = task_.sharded(); sharded != nullptr && options_.gather_at_end) {
    sharded->keep_whole();
  }
  // No rank leaves before all have done their last step, or the slow ones would miss a peer.
  world_.barrier();
  ended_ = true;
  end_recovery(world_, position.step);
  result_.reason = *reason_;
  result_.step = position.step;
  result_.epoch = position.epoch;
  result_.best = state_->watch().best();
  result_.best_step = state_->watch().best_step();
  curves_.event("stop", {{"step", position.step}, {"reason", reason_name(*reason_)}});
  for (const auto& callback : options_.callbacks) {
    callback->on_end(result_);
    callback->on_tracker(nullptr);
  }
  // A run that will go on has not ended.
  if (!to_be_continued) curves_.finish(/*succeeded=*/result_.saved);
  if (*reason_ == StopReason::preempted && options_.on_preemption == OnPreemption::raise) {
    leave_preempted(saved);
  }
}

void TrainerCore::leave_preempted(bool saved) const {
  const std::string what =
      concat("stopped by ", stop_.what(), " after step ", state_->position.step);
  if (saved) throw Preempted(concat("lockstep: ", what, "; saved in ", directory_));
  // A program that saves by itself has been told by on_end().
  if (!options_.snapshots.enabled) throw Preempted(concat("lockstep: ", what));
  // "Resume me" would start from nothing, again and again.
  throw Error(concat(what, snapshots_ ? "; it could not be saved"
                                      : "; nothing is saved without snapshots.directory"));
}

}  // namespace lockstep
