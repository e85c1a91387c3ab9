#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/tracker.h"
#include "track/system_sampler.h"
#include "train/run_journal.h"

namespace lockstep {

/// What this process keeps of a run: as rank_0 the curves of the run, in the process that is rank
/// 0, whichever that is; and, where every process keeps some, its own under the number of its slot,
/// which stays when ranks change.
///
/// Curves are worth less than a run: where they cannot be written it goes on without, and says so.
class RunCurves {
 public:
  struct Options {
    std::string directory;  // of the run; empty: nothing is written
    int slot = 0;
    int local_rank = 0;
    int node_rank = 0;
    bool all_slots = false;
    TrackingOptions tracking = {};
    std::function<void(const std::string&)> say;  // from any thread
  };

  explicit RunCurves(Options options) : options_(std::move(options)) {}

  /// A run begins at this step. Curves of an earlier one in the same folder are put aside; but a
  /// program that saves by itself may go on with them: `continues`. Returns how many lines there
  /// are.
  std::int64_t begin(bool is_main, std::int64_t step, bool continues);

  /// A run goes on from a snapshot, after which nothing counts.
  void resume(bool is_main, const TrackPlace& place);

  /// After a recovery another process may be rank 0, and goes on with the curves of the run.
  void stand_back(bool is_main);

  /// A run goes on after a recovery. A file that this process begins to write ends where the one
  /// that wrote it died or stood back: perhaps after a step that the others have not done, perhaps
  /// before one that they have. The last lines are in the journal.
  void follow(bool is_main, const TrackPlace& place, const RunJournal& journal);

  void append(std::int64_t step, const nlohmann::json& values);
  void event(const char* name, const nlohmann::json& fields);
  void console(const std::string& line);
  /// Waits, not for long, until all that was appended is in the files.
  void flush();
  void finish(bool succeeded);

  /// That of this process; nullptr: it keeps nothing.
  Tracker* tracker() const { return own_ ? own_.get() : of_run_.get(); }

 private:
  using Track = std::unique_ptr<Tracker>;
  bool has_own() const { return options_.all_slots && options_.slot != 0; }
  std::string path(int number) const;
  Track open(int number, const TrackPlace& place);
  Track begun(int number, std::int64_t step, bool continues);
  Track followed(int number, const TrackPlace& place, const RunJournal& journal);
  void sample();

  Options options_;
  Track of_run_;  // of rank 0
  Track own_;     // of a slot above 0
  Tracker* sampled_ = nullptr;
  std::unique_ptr<SystemSampler> sampler_;  // last: it uses a tracker
};

}  // namespace lockstep
