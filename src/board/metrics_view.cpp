#include "board/metrics_view.h"

#include <unistd.h>
#include <algorithm>

#include "board/metric_scan.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBetweenMarks = 256 << 10;
constexpr std::int64_t kMostReadAgain = 48 << 20;
constexpr std::size_t kMostNames = 500;  // a file that makes up names must not fill the memory

}  // namespace

bool MetricsView::poll(const RootFolder& root) {
  return file_.poll(
      root, {.begins_anew = [this] { forget(); },
             .line = [this](std::string_view line, std::int64_t offset) { add(line, offset); }});
}

void MetricsView::forget() {
  curves_.clear();
  marks_.clear();
  lines_ = last_step_ = 0;
  first_time_ = last_time_ = 0;
}

void MetricsView::add(std::string_view line, std::int64_t offset) {
  thread_local ScannedMetrics found;
  if (!scan_metrics(line, found)) return;
  if (lines_++ == 0) first_time_ = found.time;
  last_step_ = found.step;
  last_time_ = found.time;
  if (marks_.empty() || offset - marks_.back().offset >= kBetweenMarks) {
    marks_.push_back({offset, found.step, found.time});
  }
  for (const auto& [name, value] : found.values) {
    auto curve = curves_.find(name);
    if (curve == curves_.end()) {
      if (curves_.size() == kMostNames) continue;
      curve = curves_.emplace(std::string(name), Curve()).first;
    }
    curve->second.add(found.step, found.time, value);
  }
}

std::vector<CurveBucket> MetricsView::range(const RootFolder& root, const std::string& name,
                                            const CurveRange& range, std::size_t most) const {
  const auto known = curves_.find(name);
  if (known == curves_.end()) return {};
  if (range.is_all()) return fewer_buckets(known->second.buckets(), most);
  const auto place = [&](const auto& point) {
    return range.by_time ? point.time : static_cast<double>(point.step);
  };
  // A point before and one after, so that lines lead out of the picture.
  auto first = std::ranges::partition_point(
      marks_, [&](const Mark& mark) { return place(mark) < range.from; });
  if (first != marks_.begin()) --first;
  const auto last =
      std::find_if(first, marks_.end(), [&](const Mark& mark) { return place(mark) > range.to; });
  const std::int64_t begin = first == marks_.end() ? 0 : first->offset;
  const std::int64_t end = last == marks_.end() ? file_.bytes() : last->offset;
  if (end - begin > kMostReadAgain) {
    std::vector<CurveBucket> part = known->second.buckets();
    std::erase_if(part, [&](const CurveBucket& bucket) {
      return place(bucket) < range.from || place(bucket) > range.to;
    });
    return fewer_buckets(part, most);
  }
  Curve curve(most);
  std::string text(static_cast<std::size_t>(end - begin), '\0');
  const UniqueFd file = root.open_file(file_.path());
  const ssize_t got = file ? ::pread(file.get(), text.data(), text.size(), begin) : -1;
  std::string_view rest(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  ScannedMetrics found;
  for (std::size_t newline; (newline = rest.find('\n')) != rest.npos;
       rest.remove_prefix(newline + 1)) {
    if (!scan_metrics(rest.substr(0, newline), found)) continue;
    if (place(found) < range.from || place(found) > range.to) continue;
    for (const auto& [each, value] : found.values) {
      if (each == name) curve.add(found.step, found.time, value);
    }
  }
  return curve.buckets();
}

std::size_t MetricsView::bytes() const {
  std::size_t sum = marks_.capacity() * sizeof(Mark) + sizeof *this;
  for (const auto& [name, curve] : curves_) sum += name.size() + curve.bytes() + 128;
  return sum;
}

}  // namespace lockstep
