#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// Points of a metric that lie next to each other.
struct CurveBucket {
  std::int64_t step = 0;  // of the last point
  double time = 0;
  double min = 0, max = 0, sum = 0;
  std::uint32_t count = 0;    // points that are finite
  std::uint32_t missing = 0;  // and those that are not

  double mean() const;  // NaN where none is finite
};

/// A metric over steps, in bounded memory: once there are more points than buckets, neighbours
/// share one, with least, greatest and mean value, so that a spike is seen however long the run.
class Curve {
 public:
  explicit Curve(std::size_t most_buckets = 1024);

  void add(std::int64_t step, double time, double value);

  const std::vector<CurveBucket>& buckets() const { return buckets_; }
  double last() const { return last_; }
  std::size_t bytes() const { return buckets_.capacity() * sizeof(CurveBucket); }

 private:
  void halve();

  std::size_t most_;
  std::uint32_t points_per_bucket_ = 1;
  double last_ = 0;
  std::vector<CurveBucket> buckets_;
};

/// At most `most` buckets of the same points.
std::vector<CurveBucket> fewer_buckets(const std::vector<CurveBucket>& buckets, std::size_t most);

}  // namespace lockstep
