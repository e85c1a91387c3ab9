#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "train/metrics_log.h"
#include "train/run_journal.h"

namespace lockstep {

/// The files of curves that this process writes: metrics/rank_0.jsonl, the curves of the run, in
/// the process that is rank 0, whichever that is; and, where every process keeps some, a file of
/// its own under the number of its slot, which stays when ranks change.
///
/// Curves are worth less than a run: where they cannot be written it goes on without, and says so.
class RunCurves {
 public:
  struct Options {
    std::string directory;  // of the run; empty: nothing is written
    int slot = 0;
    bool all_slots = false;
    std::function<void(const std::string&)> say;
  };

  explicit RunCurves(Options options) : options_(std::move(options)) {}

  /// How far a run is: lines that it has written, and its step.
  struct Place {
    std::int64_t lines = 0;
    std::int64_t step = 0;
  };

  /// A run begins. Curves of an earlier one in the same folder are put aside if `keep_earlier`.
  void begin(bool is_main, bool keep_earlier);

  /// A run goes on from a snapshot, after which nothing counts.
  void resume(bool is_main, const Place& place);

  /// After a recovery another process may be rank 0, and goes on with the curves of the run.
  void stand_back(bool is_main);

  /// A run goes on after a recovery. A file that this process begins to write ends where the one
  /// that wrote it died or stood back: perhaps after a step that the others have not done, perhaps
  /// before one that they have. The last lines are in the journal.
  void follow(bool is_main, const Place& place, const RunJournal& journal);

  void append(std::int64_t step, const nlohmann::json& values);

 private:
  using Log = std::unique_ptr<MetricsLog>;
  bool has_own() const { return options_.all_slots && options_.slot != 0; }
  std::string path(int number) const;
  Log begun(const std::string& path, bool keep_earlier);
  Log resumed(const std::string& path, const Place& place);
  Log followed(const std::string& path, const Place& place, const RunJournal& journal);
  Log unless_it_fails(const std::function<Log()>& open);

  Options options_;
  Log of_run_;  // of rank 0
  Log own_;     // of a slot above 0
};

}  // namespace lockstep
