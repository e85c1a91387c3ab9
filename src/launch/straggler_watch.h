#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "control/worker_messages.h"

namespace lockstep {

/// Finds workers that are persistently slower than the others of their node: all wait for them in
/// every step.
///
/// It compares what a step takes of a worker's own time, which is that in which it does not wait
/// for others: loading data and computing. Time is cut into three windows of a third of `persists`
/// and of seven steps each, or longer; a worker is slow if in each of them its own time was more
/// than 1.5 times the median of the others', and the difference a tenth of the step. It is named
/// once.
///
/// Times are the caller's, of any one clock.
class StragglerWatch {
 public:
  /// 0: nobody is named.
  explicit StragglerWatch(std::chrono::milliseconds persists) : window_(persists / kWindows) {}

  void on_heartbeat(int rank, const WorkerHeartbeat& beat) { newest_[rank] = beat.work; }

  /// Another process has this rank now: all begin anew.
  void forget(int rank);

  struct Finding {
    int rank = 0;
    double ratio = 1;      // to the others
    bool in_data = false;  // most of what it takes longer is loading data; else it is computing
    std::chrono::microseconds part{0};  // of a step, for that
    std::chrono::microseconds own{0};   // of a step, all but waiting
  };

  std::vector<Finding> look(std::chrono::nanoseconds now);

  /// "rank 2 is slow: 1.9 x the others, in data loading (210 ms of 250 ms per step)".
  static std::string in_words(const Finding& finding);

 private:
  static constexpr int kWindows = 3;

  /// A step of one worker in a window, in microseconds.
  struct Step {
    double data = 0, compute = 0, waiting = 0;
    double own() const { return data + compute; }
  };

  void begin_window(std::chrono::nanoseconds now);
  std::map<int, Step> steps_of_window() const;

  std::chrono::nanoseconds window_;
  std::map<int, StepWork> newest_, at_begin_;  // by rank
  std::chrono::nanoseconds began_{-1};         // -1: there is no window
  std::map<int, int> slow_windows_;            // in a row, by rank
  std::set<int> named_;
};

}  // namespace lockstep
