#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/state.h"

namespace lockstep {

enum class MetricMode { min, max };

struct MetricWatchOptions {
  std::string metric = "eval/loss";
  MetricMode mode = MetricMode::min;
  double min_delta = 0;  // an improvement is larger than this
  /// Reports without improvement after which to stop; unset: never.
  std::optional<int> patience = std::nullopt;
};

/// Knows the best value of a metric so far, and when it has stopped improving: for keeping the best
/// snapshot and for early stopping. A value that is not a number never improves.
class MetricWatch {
 public:
  /// Throws InvalidArgument for a negative min_delta or a patience below 1.
  explicit MetricWatch(const MetricWatchOptions& options);

  /// Whether this value is the best so far.
  bool report(std::int64_t step, double value);

  bool should_stop() const;
  std::optional<double> best() const { return best_; }
  std::int64_t best_step() const { return best_step_; }
  const MetricWatchOptions& options() const { return options_; }

  State state() const;
  void load_state(const State& state);

 private:
  MetricWatchOptions options_;
  std::optional<double> best_;
  std::int64_t best_step_ = 0;
  int reports_without_improvement_ = 0;
};

}  // namespace lockstep
