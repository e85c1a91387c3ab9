#include "launch/hang_watch.h"

#include <algorithm>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// A phase that came to its end less often may yet take any time: the first steps load and compile.
constexpr std::int64_t kVisitsToLearn = 3;
// Beyond the longest ever seen, before a worker is taken for one that stands still.
constexpr int kFactor = 10;
// Phases other than that which computes a step are not alike: a function that a program calls after
// each step may do nothing a thousand times, and then write files.
constexpr int kOtherPhases = 10;
// Heartbeats come every second. What lies between two that are further apart was not seen.
constexpr milliseconds kLongestGap{3000};
constexpr std::size_t kMostPhases = 256;

}  // namespace

void HangWatch::on_heartbeat(int rank, const WorkerHeartbeat& beat) {
  Worker& worker = workers_[rank];
  const bool same = beat.step == worker.beat.step && beat.phase == worker.beat.phase &&
                    beat.alone >= worker.beat.alone;
  if (!same) worker.witnessed = milliseconds(0);
  const milliseconds before = same ? worker.beat.alone : milliseconds(0);
  worker.witnessed += std::min(beat.alone - before, kLongestGap);
  worker.beat = beat;

  if (!phases_.contains(beat.phase) && phases_.size() >= kMostPhases) return;
  Learnt& phase = phases_[beat.phase];
  phase.visits = std::max(phase.visits, beat.visits);
  phase.longest = std::max(phase.longest, beat.longest_alone);
}

std::optional<milliseconds> HangWatch::limit_of(const std::string& phase) const {
  const auto found = phases_.find(phase);
  if (found == phases_.end() || found->second.visits < kVisitsToLearn) return std::nullopt;
  const milliseconds least = phase == kComputePhase ? timeout_ : timeout_ * kOtherPhases;
  return std::max(least, found->second.longest * kFactor);
}

std::optional<HangWatch::Finding> HangWatch::judge(int rank) const {
  const auto found = workers_.find(rank);
  if (found == workers_.end() || timeout_.count() == 0) return std::nullopt;
  const auto& [beat, witnessed] = found->second;
  const auto limit = limit_of(beat.phase);
  if (!limit || beat.phase.empty() || witnessed <= *limit) return std::nullopt;
  return Finding{.step = beat.step, .phase = beat.phase, .alone = beat.alone, .limit = *limit};
}

}  // namespace lockstep
