#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "lockstep/state.h"

namespace lockstep {

class Optimizer;

/// The learning rate stays; with `warmup_steps` it first grows from 0 in equal steps.
struct ConstantSchedule {
  std::int64_t warmup_steps = 0;
};

/// Grows from 0 in `warmup_steps`, then falls in a line to 0 at `total_steps`.
struct LinearSchedule {
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
};

/// Grows from 0 in `warmup_steps`, then follows a cosine until `total_steps`.
struct CosineSchedule {
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double cycles = 0.5;      // waves; 0.5 falls once, from the top to the bottom
  double min_factor = 0.0;  // the bottom, as a part of the learning rate
};

/// Multiplied by `gamma` every `step_size` steps, as torch.optim.lr_scheduler.StepLR.
struct StepSchedule {
  std::int64_t step_size = 1;
  double gamma = 0.1;
};

/// Up to `max_lr` and down again, with momentum going the other way, as
/// torch.optim.lr_scheduler.OneCycleLR.
struct OneCycleSchedule {
  enum class Anneal { cosine, linear };

  std::int64_t total_steps = 0;
  std::optional<double> max_lr = std::nullopt;  // unset: each group's own learning rate
  double pct_start = 0.3;                       // part of the cycle in which the rate grows
  Anneal anneal = Anneal::cosine;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25.0;       // the cycle starts at max_lr / div_factor
  double final_div_factor = 1e4;  // and ends at its start / final_div_factor
  bool three_phase = false;
};

/// Grows from 0 in `warmup_steps`, then falls as 1 / sqrt(step).
struct InverseSqrtSchedule {
  std::int64_t warmup_steps = 0;
  std::int64_t timescale = 0;  // 0: warmup_steps, or 10,000 without warm-up
};

/// "Attention is all you need": lr x factor x model_size^-0.5 x min(step^-0.5, step x warmup^-1.5).
/// The optimizer's learning rate is 1 in the paper.
struct NoamSchedule {
  std::int64_t model_size = 512;
  std::int64_t warmup_steps = 4000;
  double factor = 1.0;
};

/// Multiplied by `factor` when a metric has not become better for `patience` observations, as
/// torch.optim.lr_scheduler.ReduceLROnPlateau.
struct PlateauSchedule {
  enum class Mode { min, max };
  enum class ThresholdMode { relative, absolute };

  Mode mode = Mode::min;  // which way is better
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;  // smaller changes are not better
  ThresholdMode threshold_mode = ThresholdMode::relative;
  std::int64_t cooldown = 0;  // observations after a reduction that do not count
  double min_lr = 0;
  double eps = 1e-8;  // smaller reductions are not made
};

using LRScheduleOptions =
    std::variant<ConstantSchedule, LinearSchedule, CosineSchedule, StepSchedule, OneCycleSchedule,
                 InverseSqrtSchedule, NoamSchedule, PlateauSchedule>;

/// Sets the learning rates of an optimizer's groups, each starting from its own `initial_lr`.
///
///     LRSchedule schedule(CosineSchedule{.warmup_steps = 100, .total_steps = 5000});
///     schedule.apply(optimizer, step);  // before the step with this number, from 0
///
/// All but PlateauSchedule are functions of the step alone, so there is nothing to resume. They
/// equal Python's to the last bit: the warm-up ones those of transformers, the others torch's. Step
/// k here is the state of a Python scheduler after k calls of its step().
class LRSchedule {
 public:
  /// Throws InvalidArgument for options out of range.
  explicit LRSchedule(const LRScheduleOptions& options);

  const LRScheduleOptions& options() const { return options_; }

  /// The learning rate at a step for a group that starts from `initial_lr`. For PlateauSchedule
  /// `initial_lr` itself: its rates depend on what was observed.
  double lr(std::int64_t step, double initial_lr) const;

  /// What OneCycleSchedule makes of the momentum (or the first beta); nothing for the others.
  std::optional<double> momentum(std::int64_t step) const;

  /// Sets the learning rate, and where it cycles the momentum, of every group. Does nothing for
  /// PlateauSchedule, whose rates stay in the optimizer.
  void apply(Optimizer& optimizer, std::int64_t step) const;

  /// Tells PlateauSchedule the metric of an evaluation, the same on every rank; it may lower the
  /// learning rates. Does nothing for the others.
  void observe(Optimizer& optimizer, double metric);

  /// Empty but for PlateauSchedule.
  State state() const;
  void load_state(const State& state);

 private:
  struct Plateau {
    std::optional<double> best = std::nullopt;  // nothing was better than nothing yet
    std::int64_t bad_observations = 0;
    std::int64_t cooldown_left = 0;
  };

  LRScheduleOptions options_;
  Plateau plateau_;
};

}  // namespace lockstep
