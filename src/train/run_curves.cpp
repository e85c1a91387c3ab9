#include "train/run_curves.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/error.h"

namespace lockstep {

std::string RunCurves::path(int number) const {
  return concat(options_.directory, "/metrics/rank_", number, ".jsonl");
}

RunCurves::Log RunCurves::unless_it_fails(const std::function<Log()>& open) {
  if (options_.directory.empty()) return nullptr;
  try {
    return open();
  } catch (const Error& error) {
    options_.say(concat("lockstep: the curves are not written: ", error.what()));
    return nullptr;
  }
}

RunCurves::Log RunCurves::begun(const std::string& path, bool keep_earlier) {
  return unless_it_fails([&] {
    std::error_code ignored;
    if (keep_earlier && std::filesystem::file_size(path, ignored) > 0 && !ignored) {
      std::filesystem::rename(path, path + ".before", ignored);
      if (path == this->path(0)) {
        options_.say(concat("lockstep: starts from step 0; the curves of an earlier run are now ",
                            path, ".before"));
      }
    }
    return std::make_unique<MetricsLog>(path);
  });
}

RunCurves::Log RunCurves::resumed(const std::string& path, const Place& place) {
  return unless_it_fails([&] {
    auto log = std::make_unique<MetricsLog>(path);
    log->keep(place.lines, place.step);
    return log;
  });
}

RunCurves::Log RunCurves::followed(const std::string& path, const Place& place,
                                   const RunJournal& journal) {
  Log log = resumed(path, place);
  if (!log) return log;
  std::vector<const RunEvent*> lines;
  for (const RunEvent& event : journal.events()) {
    if (!event.log.is_null()) lines.push_back(&event);
  }
  const auto missing = static_cast<std::size_t>(
      std::clamp<std::int64_t>(place.lines - log->lines(), 0, std::ssize(lines)));
  for (std::size_t i = lines.size() - missing; i < lines.size(); ++i) {
    log->append(lines[i]->step, lines[i]->log);
  }
  return log;
}

void RunCurves::begin(bool is_main, bool keep_earlier) {
  if (is_main) of_run_ = begun(path(0), keep_earlier);
  if (has_own()) own_ = begun(path(options_.slot), keep_earlier);
}

void RunCurves::resume(bool is_main, const Place& place) {
  if (is_main) of_run_ = resumed(path(0), place);
  if (has_own()) own_ = resumed(path(options_.slot), place);
}

void RunCurves::stand_back(bool is_main) {
  if (!is_main) of_run_.reset();
}

void RunCurves::follow(bool is_main, const Place& place, const RunJournal& journal) {
  if (is_main && !of_run_) of_run_ = followed(path(0), place, journal);
  if (has_own() && !own_) own_ = followed(path(options_.slot), place, journal);
}

void RunCurves::append(std::int64_t step, const nlohmann::json& values) {
  if (of_run_) of_run_->append(step, values);
  if (own_) own_->append(step, values);
}

}  // namespace lockstep
