#include "launch/straggler_watch.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kStepsInWindow = 7;
constexpr double kSlow = 1.5;          // times the median of the others
constexpr double kWorthTelling = 0.1;  // of the whole step

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string milliseconds_text(std::chrono::microseconds time) {
  const double value = static_cast<double>(time.count()) / 1000;
  std::ostringstream text;
  text << std::fixed << std::setprecision(value < 10 ? 1 : 0) << value << " ms";
  return text.str();
}

}  // namespace

void StragglerWatch::forget(int rank) {
  newest_.erase(rank);
  named_.erase(rank);
  slow_windows_.clear();
  began_ = std::chrono::nanoseconds(-1);
}

void StragglerWatch::begin_window(std::chrono::nanoseconds now) {
  began_ = now;
  at_begin_ = newest_;
}

// Empty until every worker has done enough steps.
std::map<int, StragglerWatch::Step> StragglerWatch::steps_of_window() const {
  std::map<int, Step> steps;
  for (const auto& [rank, now] : newest_) {
    const auto before = at_begin_.find(rank);
    if (before == at_begin_.end()) return {};
    const std::int64_t count = now.steps - before->second.steps;
    if (count < kStepsInWindow) return {};
    const auto per_step = [&](std::chrono::microseconds StepWork::*part) {
      return static_cast<double>((now.*part - before->second.*part).count()) /
             static_cast<double>(count);
    };
    steps[rank] = {.data = per_step(&StepWork::data),
                   .compute = per_step(&StepWork::compute),
                   .waiting = per_step(&StepWork::waiting)};
  }
  return steps;
}

std::vector<StragglerWatch::Finding> StragglerWatch::look(std::chrono::nanoseconds now) {
  std::vector<Finding> found;
  if (window_.count() == 0 || newest_.size() < 2) return found;
  if (began_.count() < 0 || at_begin_.size() != newest_.size()) {
    begin_window(now);
    return found;
  }
  if (now - began_ < window_) return found;
  const std::map<int, Step> steps = steps_of_window();
  if (steps.empty()) return found;
  for (const auto& [rank, step] : steps) {
    std::vector<double> own, data, compute;
    for (const auto& [other, theirs] : steps) {
      if (other == rank) continue;
      own.push_back(theirs.own());
      data.push_back(theirs.data);
      compute.push_back(theirs.compute);
    }
    const double usual = median(own), more = step.own() - usual;
    const bool slow =
        step.own() > kSlow * usual && more > kWorthTelling * (step.own() + step.waiting);
    int& windows = slow_windows_[rank];
    windows = slow ? windows + 1 : 0;
    if (windows < kWindows || usual <= 0 || !named_.insert(rank).second) continue;
    const bool in_data = step.data - median(data) >= step.compute - median(compute);
    const auto rounded = [](double time) {
      return std::chrono::microseconds(static_cast<std::int64_t>(time));
    };
    found.push_back({.rank = rank,
                     .ratio = step.own() / usual,
                     .in_data = in_data,
                     .part = rounded(in_data ? step.data : step.compute),
                     .own = rounded(step.own())});
  }
  begin_window(now);
  return found;
}

std::string StragglerWatch::in_words(const Finding& finding) {
  std::ostringstream ratio;
  ratio << std::fixed << std::setprecision(1) << finding.ratio;
  return concat("rank ", finding.rank, " is slow: ", ratio.str(), " x the others, in ",
                finding.in_data ? "data loading (" : "computing (", milliseconds_text(finding.part),
                " of ", milliseconds_text(finding.own), " per step)");
}

}  // namespace lockstep
