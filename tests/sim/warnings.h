#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "launch/messages.h"

namespace lockstep::sim {

/// What a coordinator, in one life, may tell nodes of a scheduler's warnings: none that it has not
/// heard of, to nobody more often than that, and never more time than was said to be left, to it or
/// to the one whose record it has.
class Warnings {
 public:
  void heard(const PassSignal& signal) {
    ++heard_;
    if (signal.time_left) longest_ = std::max(longest_, *signal.time_left);
  }

  void recalled(Time time_left) { longest_ = std::max(longest_, time_left); }

  /// What is wrong with it; empty: nothing.
  std::string sent(const std::string& node_id, const PassSignal& signal) {
    if (signal.signal != 0 && ++sent_[node_id] > heard_) {
      return "is warned more often than there were warnings";
    }
    if (signal.time_left && *signal.time_left > longest_)
      return "is told of more time than is left";
    return "";
  }

 private:
  int heard_ = 0;
  Time longest_{0};
  std::map<std::string, int> sent_;  // by node id
};

}  // namespace lockstep::sim
