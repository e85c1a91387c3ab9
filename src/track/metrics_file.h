#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tracker.h"
#include "track/record.h"

namespace lockstep {

inline constexpr std::size_t kTailLines = 64;

/// A line of metrics without its newline; std::nullopt for anything else.
std::optional<MetricLine> parse_metric_line(std::string_view line);
std::string metric_line(std::int64_t step, double time, const nlohmann::json& values);
inline std::string metric_line(const MetricLine& line) {
  return metric_line(line.step, line.time, line.values);
}

/// What a file of metrics holds. A line that was cut short is not in it; `skipped` counts lines
/// that are no metrics.
struct MetricsContent {
  std::vector<MetricLine> lines;
  std::int64_t skipped = 0;
};
MetricsContent parse_metrics(std::string_view text);

/// The file of a run may not exist yet, which is as if it were empty. Throws SystemError.
MetricsContent read_metrics(const std::string& path);

/// What is not metrics: events, samples, texts, histograms. Texts and histograms of steps that a
/// run has done again later are left out.
std::vector<nlohmann::json> parse_track_records(std::string_view text);
std::vector<nlohmann::json> read_track_records(const std::string& path);

/// Drops what comes after `place`: the lines after the first `place.lines`, and those of later
/// steps. The file is replaced as a whole, so that a crash leaves the old one or the new one.
/// Throws SystemError.
Continuation keep_metrics(const std::string& path, const TrackPlace& place);

/// Takes away what follows the last newline, which a crash has left.
void cut_torn_line(const std::string& path);

}  // namespace lockstep
