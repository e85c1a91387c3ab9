// Compiled without contraction of a * b + c into one operation: the last bits are Python's.
#include "lockstep/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"

namespace lockstep {
namespace {

void check(bool holds, const char* option, double value, const char* rule) {
  if (!holds) {
    throw InvalidArgument(concat("learning rate schedule: ", option, " is ", value, "; ", rule));
  }
}

void check_warmup(std::int64_t steps) {
  check(steps >= 0, "warmup_steps", static_cast<double>(steps), "it cannot be negative");
}

void check_total(std::int64_t total, std::int64_t warmup) {
  check_warmup(warmup);
  check(total > 0 && total >= warmup, "total_steps", static_cast<double>(total),
        "it must be positive and not less than warmup_steps");
}

void validate(const ConstantSchedule& options) {
  check_warmup(options.warmup_steps);
}

void validate(const LinearSchedule& options) {
  check_total(options.total_steps, options.warmup_steps);
}

void validate(const CosineSchedule& options) {
  check_total(options.total_steps, options.warmup_steps);
  check(options.min_factor >= 0 && options.min_factor <= 1, "min_factor", options.min_factor,
        "it must be in [0, 1]");
}

void validate(const StepSchedule& options) {
  check(options.step_size > 0, "step_size", static_cast<double>(options.step_size),
        "it must be positive");
  check(options.gamma >= 0, "gamma", options.gamma, "it cannot be negative");
}

void validate(const OneCycleSchedule& options) {
  check_total(options.total_steps, 0);
  check(options.pct_start >= 0 && options.pct_start <= 1, "pct_start", options.pct_start,
        "it must be in [0, 1]");
  check(!options.max_lr || *options.max_lr >= 0, "max_lr", options.max_lr.value_or(0),
        "it cannot be negative");
  check(options.div_factor > 0, "div_factor", options.div_factor, "it must be positive");
  check(options.final_div_factor > 0, "final_div_factor", options.final_div_factor,
        "it must be positive");
}

void validate(const InverseSqrtSchedule& options) {
  check_warmup(options.warmup_steps);
  check(options.timescale >= 0, "timescale", static_cast<double>(options.timescale),
        "it cannot be negative");
}

void validate(const NoamSchedule& options) {
  check(options.model_size > 0, "model_size", static_cast<double>(options.model_size),
        "it must be positive");
  check(options.warmup_steps > 0, "warmup_steps", static_cast<double>(options.warmup_steps),
        "it must be positive");
}

void validate(const PlateauSchedule& options) {
  check(options.factor >= 0 && options.factor < 1, "factor", options.factor,
        "it must be in [0, 1)");
  check(options.patience >= 0, "patience", static_cast<double>(options.patience),
        "it cannot be negative");
}

// What transformers' lambdas do while step < warmup.
double warmup_factor(std::int64_t step, std::int64_t warmup) {
  return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup));
}

// After the warm-up: the part of the way to the end that lies behind.
double progress(std::int64_t step, std::int64_t warmup, std::int64_t total) {
  return static_cast<double>(step - warmup) /
         static_cast<double>(std::max<std::int64_t>(1, total - warmup));
}

double rate(const ConstantSchedule& options, std::int64_t step, double lr) {
  return step < options.warmup_steps ? lr * warmup_factor(step, options.warmup_steps) : lr;
}

double rate(const LinearSchedule& options, std::int64_t step, double lr) {
  if (step < options.warmup_steps) {
    return lr * warmup_factor(step, options.warmup_steps);
  }
  const double left =
      static_cast<double>(options.total_steps - step) /
      static_cast<double>(std::max<std::int64_t>(1, options.total_steps - options.warmup_steps));
  return lr * std::max(0.0, left);
}

double rate(const CosineSchedule& options, std::int64_t step, double lr) {
  if (step < options.warmup_steps) {
    return lr * warmup_factor(step, options.warmup_steps);
  }
  const double angle = std::numbers::pi * options.cycles * 2.0 *
                       progress(step, options.warmup_steps, options.total_steps);
  const double wave = 0.5 * (1.0 + std::cos(angle));
  return lr * std::max(0.0, wave * (1 - options.min_factor) + options.min_factor);
}

double rate(const StepSchedule& options, std::int64_t step, double lr) {
  // A product in a loop, because Python multiplies step by step: pow() has other last bits.
  for (std::int64_t turn = step / options.step_size; turn > 0; --turn) {
    const double next = lr * options.gamma;
    if (next == lr) {
      break;
    }
    lr = next;
  }
  return lr;
}

double rate(const InverseSqrtSchedule& options, std::int64_t step, double lr) {
  if (step < options.warmup_steps) {
    return lr * warmup_factor(step, options.warmup_steps);
  }
  std::int64_t timescale = options.timescale;
  if (timescale == 0) {
    timescale = options.warmup_steps > 0 ? options.warmup_steps : 10'000;
  }
  const std::int64_t shift = timescale - options.warmup_steps;
  return lr * (1.0 / std::sqrt(static_cast<double>(step + shift) / static_cast<double>(timescale)));
}

double rate(const NoamSchedule& options, std::int64_t step, double lr) {
  const auto number = static_cast<double>(std::max<std::int64_t>(1, step));
  const double least = std::min(std::pow(number, -0.5),
                                number * std::pow(static_cast<double>(options.warmup_steps), -1.5));
  return lr * (options.factor * (std::pow(static_cast<double>(options.model_size), -0.5) * least));
}

double rate(const PlateauSchedule&, std::int64_t, double lr) {
  return lr;
}

// The values that OneCycleLR moves between.
struct Anchors {
  double low;   // where the cycle begins
  double high;  // its middle
  double end;
};

double annealed(const OneCycleSchedule& options, double start, double end, double part) {
  if (options.anneal == OneCycleSchedule::Anneal::linear) {
    return (end - start) * part + start;
  }
  const double wave = std::cos(std::numbers::pi * part) + 1;
  return end + (start - end) / 2.0 * wave;
}

double on_cycle(const OneCycleSchedule& options, std::int64_t step, const Anchors& anchors) {
  struct Phase {
    double end_step;
    double start;
    double end;
  };
  const auto total = static_cast<double>(options.total_steps);
  std::vector<Phase> phases = {{options.pct_start * total - 1, anchors.low, anchors.high}};
  if (options.three_phase) {
    phases.push_back({2 * options.pct_start * total - 2, anchors.high, anchors.low});
  }
  phases.push_back({total - 1, phases.back().end, anchors.end});
  const auto now = static_cast<double>(step);
  double start_step = 0;
  for (std::size_t number = 0; number + 1 < phases.size(); ++number) {
    const Phase& phase = phases[number];
    if (now <= phase.end_step) {
      return annealed(options, phase.start, phase.end,
                      (now - start_step) / (phase.end_step - start_step));
    }
    start_step = phase.end_step;
  }
  const Phase& last = phases.back();
  return annealed(options, last.start, last.end, (now - start_step) / (last.end_step - start_step));
}

void check_step(const OneCycleSchedule& options, std::int64_t step) {
  if (step > options.total_steps) {
    throw InvalidArgument(concat("learning rate schedule: step ", step,
                                 " is past the cycle; total_steps is ", options.total_steps));
  }
}

double rate(const OneCycleSchedule& options, std::int64_t step, double lr) {
  check_step(options, step);
  const double high = options.max_lr.value_or(lr);
  const double low = high / options.div_factor;
  return on_cycle(options, step, {low, high, low / options.final_div_factor});
}

bool is_better(const PlateauSchedule& options, double value, double best) {
  const bool relative = options.threshold_mode == PlateauSchedule::ThresholdMode::relative;
  if (options.mode == PlateauSchedule::Mode::min) {
    return value < (relative ? best * (1.0 - options.threshold) : best - options.threshold);
  }
  return value > (relative ? best * (options.threshold + 1.0) : best + options.threshold);
}

double worst(PlateauSchedule::Mode mode) {
  const double infinity = std::numeric_limits<double>::infinity();
  return mode == PlateauSchedule::Mode::min ? infinity : -infinity;
}

}  // namespace

LRSchedule::LRSchedule(const LRScheduleOptions& options) : options_(options) {
  std::visit([](const auto& values) { validate(values); }, options_);
}

double LRSchedule::lr(std::int64_t step, double initial_lr) const {
  check(step >= 0, "step", static_cast<double>(step), "it cannot be negative");
  return std::visit([&](const auto& values) { return rate(values, step, initial_lr); }, options_);
}

std::optional<double> LRSchedule::momentum(std::int64_t step) const {
  const auto* cycle = std::get_if<OneCycleSchedule>(&options_);
  if (!cycle || !cycle->cycle_momentum) {
    return std::nullopt;
  }
  check_step(*cycle, step);
  return on_cycle(*cycle, step, {cycle->max_momentum, cycle->base_momentum, cycle->max_momentum});
}

void LRSchedule::apply(Optimizer& optimizer, std::int64_t step) const {
  if (std::holds_alternative<PlateauSchedule>(options_)) {
    return;
  }
  const std::optional<double> new_momentum = momentum(step);
  for (std::size_t group = 0; group < optimizer.groups().size(); ++group) {
    optimizer.set_lr(group, lr(step, optimizer.groups()[group].initial_lr));
    if (new_momentum) {
      optimizer.set_momentum(group, *new_momentum);
    }
  }
}

void LRSchedule::observe(Optimizer& optimizer, double metric) {
  const auto* options = std::get_if<PlateauSchedule>(&options_);
  if (!options) {
    return;
  }
  if (is_better(*options, metric, plateau_.best.value_or(worst(options->mode)))) {
    plateau_.best = metric;
    plateau_.bad_observations = 0;
  } else {
    ++plateau_.bad_observations;
  }
  if (plateau_.cooldown_left > 0) {
    --plateau_.cooldown_left;
    plateau_.bad_observations = 0;
  }
  if (plateau_.bad_observations <= options->patience) {
    return;
  }
  for (std::size_t group = 0; group < optimizer.groups().size(); ++group) {
    const double before = optimizer.lr(group);
    const double after = std::max(before * options->factor, options->min_lr);
    if (before - after > options->eps) {
      optimizer.set_lr(group, after);
    }
  }
  plateau_.cooldown_left = options->cooldown;
  plateau_.bad_observations = 0;
}

State LRSchedule::state() const {
  State result;
  if (std::holds_alternative<PlateauSchedule>(options_)) {
    if (plateau_.best) {
      result.values["best"] = *plateau_.best;
    }
    result.values["bad_observations"] = plateau_.bad_observations;
    result.values["cooldown_left"] = plateau_.cooldown_left;
  }
  return result;
}

void LRSchedule::load_state(const State& state) {
  if (!std::holds_alternative<PlateauSchedule>(options_)) {
    return;
  }
  try {
    Plateau loaded;
    if (state.values.contains("best")) {
      loaded.best = state.values.at("best").get<double>();
    }
    loaded.bad_observations = state.values.at("bad_observations").get<std::int64_t>();
    loaded.cooldown_left = state.values.at("cooldown_left").get<std::int64_t>();
    plateau_ = loaded;
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(
        concat("learning rate schedule: this is not the state of a plateau: ", error.what()));
  }
}

}  // namespace lockstep
