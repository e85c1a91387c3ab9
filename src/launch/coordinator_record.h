#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/messages.h"

namespace lockstep {

/// What a coordinator must know to go on where another one stood: who is a member of the current
/// epoch, how far that has come, and what the job has used up. What else it needs, nodes tell when
/// they join.
///
/// It changes with epochs and their phases and with warnings, never with other messages.
struct CoordinatorRecord {
  enum class Phase { preparing, running, stopping, finished };
  struct End {
    int code = 0;
    std::string reason;
    bool of_worker = false;
    bool operator==(const End&) const = default;
  };

  std::string run_id;
  std::string host_id;  // of the node in whose process the coordinator ran; empty: in none
  Epoch epoch = 0;
  Phase phase = Phase::preparing;
  int restarts = 0;
  int replacements = 0;
  bool carries_over = false;
  bool settled = true;
  std::vector<NodeInfo> seats;            // by group rank, as they are or were when they were lost
  std::vector<std::string> participants;  // their ids; empty where a seat has no node
  std::vector<int> replaced;              // ranks whose new worker has not shown its state yet
  std::vector<int> left_out;              // places without a worker
  std::map<int, int> absences;            // by place: how often it was left out
  std::map<int, std::int64_t> died_at;    // by place: the step at which the job went on
  std::optional<Start> start;             // once all were ready
  End cause;                              // of the loss that this epoch recovers from
  std::optional<End> ending;              // what follows when all have stopped
  std::optional<Finish> finish;           // once finished
  std::optional<Time> time_left;          // until the scheduler ends the job, once it has warned
  Time written_at{0};                     // the wall clock then; not the coordinator's to know

  bool operator==(const CoordinatorRecord& other) const;
};

/// As one line of JSON, and back; std::nullopt for what to_json() could not have made.
std::string to_json(const CoordinatorRecord& record);
std::optional<CoordinatorRecord> coordinator_record_from_json(std::string_view json);

}  // namespace lockstep
