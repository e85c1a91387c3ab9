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

/// A line of the metrics, without what is a rank's own.
struct JournalLine {
  std::int64_t step = 0;
  nlohmann::json values = nullptr;
};

/// The last events of a run. When ranks recover, one that was a commit behind takes over the state
/// of one ahead, and learns here what it has not told yet.
class RunJournal {
 public:
  /// Between two collectives there are at most a step, an epoch's end and an evaluation.
  static constexpr std::size_t kKept = 6;
  /// A process that is killed may take some along that it had not come to write.
  static constexpr std::size_t kKeptLines = 64;

  void add(RunEvent event) {
    if (!event.log.is_null()) lines_.push_back({.step = event.step, .values = event.log});
    if (lines_.size() > kKeptLines) lines_.pop_front();
    events_.push_back(std::move(event));
    if (events_.size() > kKept) events_.pop_front();
  }
  const std::deque<RunEvent>& events() const { return events_; }
  const std::deque<JournalLine>& lines() const { return lines_; }

  /// Numbers may be infinite or NaN: for CBOR, not for text.
  nlohmann::json to_json() const;
  static RunJournal from_json(const nlohmann::json& value);

 private:
  std::deque<RunEvent> events_;
  std::deque<JournalLine> lines_;
};

}  // namespace lockstep
