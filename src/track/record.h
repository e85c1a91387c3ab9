#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/tracker.h"

namespace lockstep {

/// Something that a run has told its tracker.
struct TrackRecord {
  enum class Kind { metrics, event, text, histogram, system, console, file };

  Kind kind = Kind::metrics;
  double time = 0;        // seconds since 1970
  std::int64_t step = 0;  // of metrics, texts and histograms
  std::int64_t row = 0;   // of metrics: the number of the line
  std::string name = {};
  std::string text = {};
  nlohmann::json values = nullptr;
};

/// Where a stream of records goes on.
struct Continuation {
  bool resumed = false;
  TrackPlace place = {};              // as the run knows it
  std::int64_t kept = 0;              // lines that the file has of it; some may have been lost
  std::vector<MetricLine> tail = {};  // the last of them
};

double seconds_since_1970();

}  // namespace lockstep
