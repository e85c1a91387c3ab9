#pragma once

#include <deque>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "board/growing_file.h"

namespace lockstep {

/// How a rank was lost and the run went on, by the launcher's events of one epoch.
struct RecoveryStory {
  struct Stage {
    std::string name;
    double at_ms = 0;  // after the loss
  };

  std::uint64_t epoch = 0;
  double time = 0;  // of the loss
  std::string lost;
  std::string reason;
  std::vector<Stage> stages;
  bool done = false;
  std::int64_t step = 0;  // after which all go on
  double ms = 0;          // from the loss to that
};

/// The launcher's events (RUN/events.jsonl), the newest of them, and what follows from them about
/// the job. Not thread-safe.
class EventsView {
 public:
  explicit EventsView(std::string path) : file_(std::move(path)) {}

  bool poll(const RootFolder& root);

  struct Job {
    bool started = false;
    bool ended = false;
    double start = 0, end = 0;
    int exit_code = 0;
    std::string reason;
    int world_size = 0;
    int restarts = 0;
    int failures = 0;
    int stragglers = 0;
  };
  const Job& job() const { return job_; }
  const std::deque<nlohmann::json>& events() const { return events_; }
  const std::deque<RecoveryStory>& recoveries() const { return recoveries_; }
  double changed() const { return file_.changed(); }
  std::size_t bytes() const;

 private:
  void forget();
  void add(nlohmann::json event);
  void tell(const nlohmann::json& event, const std::string& kind, double time);

  GrowingFile file_;
  Job job_;
  double last_loss_ = 0;
  std::deque<nlohmann::json> events_;
  std::deque<RecoveryStory> recoveries_;
};

}  // namespace lockstep
