#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/tracker.h"

namespace lockstep {

void choose_sinks(TrackingOptions& options, std::string_view list) {
  options.tensorboard = options.wandb = false;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, end);
    if (name == "tensorboard") {
      options.tensorboard = true;
    } else if (name == "wandb") {
      options.wandb = true;
    } else if (name != "jsonl") {
      throw InvalidArgument(
          concat("'", name, "' is no way to track a run; there are jsonl, tensorboard, wandb"));
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

Histogram Histogram::of(std::span<const double> values, int bins) {
  if (bins < 1)
    throw InvalidArgument(concat("Histogram: bins is ", bins, "; it must be 1 or more"));
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite),
                       [](double v) { return std::isfinite(v); });
  Histogram histogram;
  if (finite.empty()) return histogram;
  const auto [low, high] = std::ranges::minmax(finite);
  histogram.min = low;
  histogram.max = high;
  const double width = high > low ? (high - low) / bins : 1.0 / bins;
  for (int i = 0; i <= bins; ++i) histogram.edges.push_back(low + i * width);
  if (high > low) histogram.edges.back() = high;
  histogram.counts.assign(static_cast<std::size_t>(bins), 0);
  for (const double value : finite) {
    const auto bin = static_cast<int>((value - low) / width);
    histogram.counts[static_cast<std::size_t>(std::clamp(bin, 0, bins - 1))] += 1;
    histogram.sum += value;
    histogram.sum_squares += value * value;
  }
  return histogram;
}

}  // namespace lockstep
