#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/error.h"
#include "lockstep/state.h"

namespace lockstep {

class Tracker;

enum class StopReason {
  finished,       // all epochs or steps
  early_stopped,  // the watched metric no longer improves
  time_limit,
  preempted,   // SIGTERM, SIGUSR1, or the launcher's request
  callback,    // a callback wanted to stop
  non_finite,  // NonFinite::stop
};

/// Where the time of a step goes on this rank, in seconds: means over the steps since the report
/// before. On a GPU only steps that are logged are measured, and waited for between the phases.
struct StepTimes {
  double data = 0;      // waiting for the loader, and moving batches to the device
  double forward = 0;   // of all micro-batches and slots
  double backward = 0;  // likewise, without the next
  double reduce = 0;  // waiting for the other ranks: after the last gradient, and for their losses
  double update = 0;  // clipping and the optimizer
  double total = 0;   // of the step; evaluation and saving are not part of it
};

/// A step that has been committed (or, with `skipped`, thrown away for non-finite gradients).
struct StepReport {
  std::int64_t step = 0;           // steps done, this one included
  std::int64_t epoch = 0;          // counted from 0
  std::int64_t step_in_epoch = 0;  // steps of the epoch done, this one included
  double lr = 0;                   // of the first parameter group
  double grad_norm = 0;            // before clipping
  bool skipped = false;
  /// The mean over everything that the step counted, on all ranks; only in steps that are logged.
  std::optional<double> loss = std::nullopt;
  std::map<std::string, double> metrics = {};     // likewise
  std::optional<StepTimes> times = std::nullopt;  // likewise
};

struct TrainResult {
  StopReason reason = StopReason::finished;
  std::int64_t step = 0;
  std::int64_t epoch = 0;                     // epochs completed
  std::optional<double> loss = std::nullopt;  // the last one logged
  std::map<std::string, double> evaluation = {};
  std::optional<double> best = std::nullopt;  // of the watched metric
  std::int64_t best_step = 0;
  std::int64_t resumed_from = 0;  // the step of the snapshot it went on from; 0: none

  bool saved = true;  // false: its last state should be on the disk and could not be written

  /// 1 when the last state could not be saved; 75 when the run was preempted and can be resumed;
  /// else 0.
  int exit_code() const {
    if (!saved) return 1;
    return reason == StopReason::preempted ? Preempted::kExitCode : 0;
  }
};

/// Code of the program's own at points of a run. Callbacks run on every rank, after the commit of
/// what they report: after a crash a report may come a second time. They must not change the model.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_start(std::int64_t step) { (void)step; }
  /// What this rank tells goes here from now on; nullptr: it keeps nothing. After a recovery it may
  /// be another.
  virtual void on_tracker(Tracker* tracker) { (void)tracker; }
  /// On a GPU, with AdamW and float32 weights or with `cuda_graph`, gradients are neither clipped
  /// nor divided by the counts of a LossSum: the update does that on the way.
  virtual void on_step(const StepReport& report) { (void)report; }
  /// More for the line that a logged step gets in this rank's log.
  virtual std::map<std::string, double> log_values(const StepReport& report) {
    (void)report;
    return {};
  }
  virtual void on_epoch_end(std::int64_t epoch) { (void)epoch; }
  /// More metrics, made of those of an evaluation, such as exp(loss); named "eval/..." like them.
  /// They must be the same on every rank.
  virtual std::map<std::string, double> evaluation_values(
      const std::map<std::string, double>& metrics) {
    (void)metrics;
    return {};
  }
  virtual void on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) {
    (void)step, (void)metrics;
  }
  /// A snapshot of this step has been handed over for writing.
  virtual void on_save(std::int64_t step) { (void)step; }
  virtual void on_end(const TrainResult& result) { (void)result; }

  /// True on any rank ends the run on all of them.
  virtual bool wants_to_stop() const { return false; }

  /// Kept in snapshots under name(), if that is not empty; the state of rank 0.
  virtual std::string name() const { return {}; }
  virtual State state() const { return {}; }
  virtual void load_state(const State& state) { (void)state; }
};

/// Gradients or a loss were infinite or not a number.
class NonFiniteStep : public Error {
 public:
  struct Details {
    int rank = -1;  // where it began
    std::int64_t step = 0;
    std::string parameter;  // the first one whose gradient is not finite; empty: only the loss is
  };
  NonFiniteStep(const std::string& message, Details details)
      : Error(message), details_(std::move(details)) {}
  const Details& details() const { return details_; }

 private:
  Details details_;
};

}  // namespace lockstep
