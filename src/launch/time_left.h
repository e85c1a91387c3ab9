#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/subprocess.h"
#include "launch/event_loop.h"
#include "lockstep/environment.h"

namespace lockstep {

using WallTime = std::chrono::system_clock::time_point;

/// How long a job of a scheduler has until that ends it, by what variables say, at least 0: the end
/// as seconds since 1970 in SLURM_JOB_END_TIME or LOCKSTEP_JOB_END_TIME, or the whole length in
/// PBS_WALLTIME, which is counted from `started`. What is no number is as if it were unset.
std::optional<std::chrono::seconds> time_left(const Environment& environment, WallTime started,
                                              WallTime now);

/// The end in what `scontrol --oneliner show job` prints, which is in this machine's time zone.
std::optional<WallTime> end_time_of_job(std::string_view text);

/// Finds out how long the job has, when somebody wants to know: from variables, else from Slurm's
/// controller. Where that does not answer, LOCKSTEP_WARNING_SECONDS counts, which job scripts set
/// to what they have told the scheduler to warn them by.
///
/// Of the nodes of a job only the first asks the controller: all of them may be warned at once.
/// The loop must outlive it.
class TimeLeftFinder {
 public:
  using Answer = std::function<void(std::optional<std::chrono::seconds>)>;

  /// `folder` is for what the controller says.
  TimeLeftFinder(EventLoop& loop, Environment environment, std::string folder);
  ~TimeLeftFinder();
  TimeLeftFinder(const TimeLeftFinder&) = delete;
  TimeLeftFinder& operator=(const TimeLeftFinder&) = delete;

  /// Answers at once where variables tell or nobody can be asked, else within a few seconds.
  void find(Answer answer);

 private:
  bool can_ask() const;
  void ask();
  void on_answer();
  void give_up();
  void tell(std::optional<std::chrono::seconds> left);
  void forget();

  EventLoop& loop_;
  Environment environment_;
  std::string output_path_;
  WallTime started_;
  std::optional<Subprocess> question_;
  EventLoop::TimerId limit_{};
  std::vector<Answer> waiting_;
};

}  // namespace lockstep
