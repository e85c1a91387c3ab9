#include "train/run_curves.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Whether a line that was kept is this one of the journal, which lacks what is a rank's own.
bool is_same(const MetricLine& kept, const JournalLine& line) {
  if (kept.step != line.step) return false;
  for (const auto& [name, value] : line.values.items()) {
    if (!kept.values.contains(name)) return false;
  }
  return true;
}

}  // namespace

std::string RunCurves::path(int number) const {
  return concat(options_.directory, "/metrics/rank_", number, ".jsonl");
}

RunCurves::Track RunCurves::open(int number, const TrackPlace& place) {
  if (options_.directory.empty()) return nullptr;
  return std::make_unique<Tracker>(TrackerOptions{.directory = options_.directory,
                                                  .rank = number,
                                                  .local_rank = options_.local_rank,
                                                  .node_rank = options_.node_rank,
                                                  .tracking = options_.tracking,
                                                  .place = place,
                                                  .report = options_.say});
}

RunCurves::Track RunCurves::begun(int number, std::int64_t step, bool continues) {
  if (options_.directory.empty()) return nullptr;
  if (continues && step > 0) {
    constexpr auto kAll = std::numeric_limits<std::int64_t>::max();
    return open(number, TrackPlace{.lines = kAll, .step = step});
  }
  std::error_code ignored;
  const std::string file = path(number);
  if (std::filesystem::file_size(file, ignored) > 0 && !ignored) {
    std::filesystem::rename(file, file + ".before", ignored);
    if (number == 0) {
      options_.say(concat("lockstep: starts from step ", step,
                          "; the curves of an earlier run are now ", file, ".before"));
    }
  }
  // Where TensorBoard and W&B have such curves, these do not count either.
  return open(number, TrackPlace{});
}

RunCurves::Track RunCurves::followed(int number, const TrackPlace& place,
                                     const RunJournal& journal) {
  Track track = open(number, place);
  if (!track) return track;
  const auto& lines = journal.lines();
  const auto& tail = track->tail();
  // After the last one that is there; where none is, all of later steps.
  auto next = lines.begin();
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    const bool there =
        std::ranges::any_of(tail, [&](const MetricLine& kept) { return is_same(kept, *line); });
    const bool earlier = !tail.empty() && line->step < tail.back().step;
    if (there || earlier) next = line + 1;
  }
  for (; next != lines.end(); ++next) track->metrics(next->step, next->values);
  return track;
}

std::int64_t RunCurves::begin(bool is_main, std::int64_t step, bool continues) {
  if (is_main) of_run_ = begun(0, step, continues);
  if (has_own()) own_ = begun(options_.slot, step, continues);
  sample();
  return tracker() != nullptr ? tracker()->kept() : 0;
}

void RunCurves::resume(bool is_main, const TrackPlace& place) {
  if (is_main) of_run_ = open(0, place);
  if (has_own()) own_ = open(options_.slot, place);
  sample();
}

void RunCurves::stand_back(bool is_main) {
  if (is_main) return;
  if (sampled_ == of_run_.get()) sampler_.reset();
  of_run_.reset();
}

void RunCurves::follow(bool is_main, const TrackPlace& place, const RunJournal& journal) {
  if (is_main && !of_run_) of_run_ = followed(0, place, journal);
  if (has_own() && !own_) own_ = followed(options_.slot, place, journal);
  sample();
}

// The first process of a node samples its host, too.
void RunCurves::sample() {
  if (options_.tracking.sample_every.count() <= 0 || tracker() == nullptr || sampler_) return;
  sampled_ = tracker();
  sampler_ = std::make_unique<SystemSampler>(
      *sampled_, SystemSampler::Options{.every = options_.tracking.sample_every,
                                        .host = options_.local_rank == 0});
}

void RunCurves::append(std::int64_t step, const nlohmann::json& values) {
  if (of_run_) of_run_->metrics(step, values);
  if (own_) own_->metrics(step, values);
}

void RunCurves::event(const char* name, const nlohmann::json& fields) {
  if (tracker() != nullptr) tracker()->event(name, fields);
}

void RunCurves::console(const std::string& line) {
  if (tracker() != nullptr) tracker()->console(line + "\n");
}

void RunCurves::flush() {
  if (of_run_) of_run_->flush();
  if (own_) own_->flush();
}

void RunCurves::finish(bool succeeded) {
  sampler_.reset();
  if (of_run_) of_run_->finish(succeeded);
  if (own_) own_->finish(succeeded);
  of_run_.reset();
  own_.reset();
}

}  // namespace lockstep
