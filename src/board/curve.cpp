#include "board/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

CurveBucket united(const CurveBucket& one, const CurveBucket& next) {
  CurveBucket both = next;
  both.missing += one.missing;
  if (one.count == 0) return both;
  both.min = next.count == 0 ? one.min : std::min(one.min, next.min);
  both.max = next.count == 0 ? one.max : std::max(one.max, next.max);
  both.sum = next.count == 0 ? one.sum : one.sum + next.sum;
  both.count += one.count;
  return both;
}

}  // namespace

double CurveBucket::mean() const {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
}

Curve::Curve(std::size_t most_buckets) : most_(std::max<std::size_t>(2, most_buckets)) {}

void Curve::add(std::int64_t step, double time, double value) {
  CurveBucket point{
      .step = step, .time = time, .min = value, .max = value, .sum = value, .count = 1};
  if (!std::isfinite(value)) point = {.step = step, .time = time, .missing = 1};
  last_ = value;
  if (!buckets_.empty() && buckets_.back().count + buckets_.back().missing < points_per_bucket_) {
    buckets_.back() = united(buckets_.back(), point);
    return;
  }
  if (buckets_.size() == most_) {
    halve();
    // An odd number leaves the last bucket half full: the point may belong to it.
    return add(step, time, value);
  }
  buckets_.push_back(point);
}

void Curve::halve() {
  const std::size_t count = buckets_.size();
  for (std::size_t i = 0; i < count; i += 2) {
    buckets_[i / 2] = i + 1 < count ? united(buckets_[i], buckets_[i + 1]) : buckets_[i];
  }
  buckets_.resize((count + 1) / 2);
  points_per_bucket_ *= 2;
}

std::vector<CurveBucket> fewer_buckets(const std::vector<CurveBucket>& buckets, std::size_t most) {
  most = std::max<std::size_t>(1, most);
  if (buckets.size() <= most) return buckets;
  const std::size_t each = (buckets.size() + most - 1) / most;
  std::vector<CurveBucket> fewer;
  fewer.reserve(most);
  for (std::size_t i = 0; i < buckets.size(); i += each) {
    CurveBucket group = buckets[i];
    for (std::size_t k = i + 1; k < std::min(i + each, buckets.size()); ++k) {
      group = united(group, buckets[k]);
    }
    fewer.push_back(group);
  }
  return fewer;
}

}  // namespace lockstep
