#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "board/curve.h"
#include "board/growing_file.h"
#include "board/root_folder.h"

namespace lockstep {

/// A part of a run. Steps are whole numbers; times are seconds since 1970.
struct CurveRange {
  bool by_time = false;
  double from = 0;
  double to = 0;  // not above `from`: all of it

  bool is_all() const { return !(to > from); }
};

/// The metrics of one rank, in bounded memory whatever the file's length.
///
/// Curves of the whole run are kept as the file grows. Of a part, the file's lines are read again,
/// found by an index of it, as long as they are not too many. Not thread-safe.
class MetricsView {
 public:
  explicit MetricsView(std::string path) : file_(std::move(path)) {}

  bool poll(const RootFolder& root);

  const std::map<std::string, Curve, std::less<>>& curves() const { return curves_; }
  std::vector<CurveBucket> range(const RootFolder& root, const std::string& name,
                                 const CurveRange& range, std::size_t most) const;

  std::int64_t lines() const { return lines_; }
  std::int64_t last_step() const { return last_step_; }
  double first_time() const { return first_time_; }
  double last_time() const { return last_time_; }
  double changed() const { return file_.changed(); }
  std::size_t bytes() const;  // of memory

 private:
  struct Mark {
    std::int64_t offset;
    std::int64_t step;
    double time;
  };

  void forget();
  void add(std::string_view line, std::int64_t offset);

  GrowingFile file_;
  std::map<std::string, Curve, std::less<>> curves_;
  std::vector<Mark> marks_;  // where in the file which step is
  std::int64_t lines_ = 0;
  std::int64_t last_step_ = 0;
  double first_time_ = 0, last_time_ = 0;
};

}  // namespace lockstep
