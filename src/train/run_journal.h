#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/callback.h"

namespace lockstep {

/// Something that a run has told callbacks and its log.
struct RunEvent {
  enum class Kind { step, epoch_end, evaluation };

  Kind kind = Kind::step;
  std::int64_t commit = 0;  // the number of commits of the run, this one included
  std::int64_t step = 0;
  std::int64_t epoch = 0;                         // of an epoch's end
  StepReport report = {};                         // of a step
  std::map<std::string, double> evaluation = {};  // of an evaluation
  nlohmann::json log = nullptr;                   // the line in the log; null: none
};

/// The last events of a run. When ranks recover, one that was a commit behind takes over the state
/// of one ahead, and learns here what it has not told yet.
class RunJournal {
 public:
  /// Between two collectives there are at most a step, an epoch's end and an evaluation.
  static constexpr std::size_t kKept = 6;

  void add(RunEvent event) {
    events_.push_back(std::move(event));
    if (events_.size() > kKept) events_.pop_front();
  }
  const std::deque<RunEvent>& events() const { return events_; }

  /// Numbers may be infinite or NaN: for CBOR, not for text.
  nlohmann::json to_json() const;
  static RunJournal from_json(const nlohmann::json& list);

 private:
  std::deque<RunEvent> events_;
};

}  // namespace lockstep
