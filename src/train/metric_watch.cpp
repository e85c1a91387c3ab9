#include "lockstep/metric_watch.h"

#include <cmath>

#include "lockstep/error.h"

namespace lockstep {

MetricWatch::MetricWatch(const MetricWatchOptions& options) : options_(options) {
  if (!(options_.min_delta >= 0)) {
    throw InvalidArgument(
        concat("MetricWatch: min_delta is ", options_.min_delta, "; it must be 0 or more"));
  }
  if (options_.patience && *options_.patience < 1) {
    throw InvalidArgument(
        concat("MetricWatch: patience is ", *options_.patience, "; it must be 1 or more"));
  }
}

bool MetricWatch::report(std::int64_t step, double value) {
  const double gain = !best_                             ? INFINITY
                      : options_.mode == MetricMode::min ? *best_ - value
                                                         : value - *best_;
  if (std::isnan(value) || !(gain > options_.min_delta)) {
    ++reports_without_improvement_;
    return false;
  }
  best_ = value;
  best_step_ = step;
  reports_without_improvement_ = 0;
  return true;
}

bool MetricWatch::should_stop() const {
  return options_.patience && reports_without_improvement_ >= *options_.patience;
}

State MetricWatch::state() const {
  State state;
  state.values = {{"metric", options_.metric},
                  {"best_step", best_step_},
                  {"reports_without_improvement", reports_without_improvement_}};
  // As text, because JSON has no infinity.
  if (best_)
    state.values["best"] = std::isfinite(*best_) ? nlohmann::json(*best_)
                           : *best_ > 0          ? "inf"
                                                 : "-inf";
  return state;
}

void MetricWatch::load_state(const State& state) {
  const nlohmann::json& values = state.values;
  if (values.value("metric", options_.metric) != options_.metric) return;  // another is watched now
  best_.reset();
  if (values.contains("best")) {
    const nlohmann::json& best = values["best"];
    best_ = best.is_number() ? best.get<double>() : best == "inf" ? INFINITY : -INFINITY;
  }
  best_step_ = values.at("best_step");
  reports_without_improvement_ = values.at("reports_without_improvement");
}

}  // namespace lockstep
