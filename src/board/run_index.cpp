#include "board/run_index.h"

#include <algorithm>

namespace lockstep {

bool RunIndex::is_run(const std::string& id) const {
  for (const char* name : {"job.json", "events.jsonl", kHeadEvents}) {
    if (root_.open_file(join_path(id, name))) return true;
  }
  for (const char* name : {"metrics", "records"}) {
    for (const FolderEntry& entry : root_.list(join_path(id, name), 100)) {
      if (entry.name.starts_with("rank_") && entry.name.ends_with(".jsonl")) return true;
    }
  }
  return false;
}

void RunIndex::scan(const std::string& folder, int depth, std::vector<std::string>& found) const {
  if (found.size() >= options_.most_runs) return;
  if (is_run(folder)) {
    found.push_back(folder);
    return;  // what is inside a run belongs to it
  }
  if (depth == options_.deepest) return;
  for (const FolderEntry& entry : root_.list(folder)) {
    if (entry.kind != FolderEntry::Kind::folder || entry.name.starts_with('.')) continue;
    scan(join_path(folder, entry.name), depth + 1, found);
  }
}

std::vector<std::string> RunIndex::ids() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (scanned_.time_since_epoch().count() == 0 || now - scanned_ > options_.scan_every) {
    ids_.clear();
    scan("", 0, ids_);
    scanned_ = std::chrono::steady_clock::now();
  }
  return ids_;
}

std::shared_ptr<RunView> RunIndex::find(const std::string& id) {
  if (!id.empty() && !is_plain_path(id)) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto known = runs_.find(id);
    if (known != runs_.end()) {
      newest_first_.splice(newest_first_.begin(), newest_first_, known->second.place);
      return known->second.run;
    }
  }
  if (!is_run(id)) return nullptr;
  const std::lock_guard lock(mutex_);
  forget_some();
  const auto [place, added] = runs_.try_emplace(id);
  if (added) {
    newest_first_.push_front(id);
    place->second = {std::make_shared<RunView>(root_, id), newest_first_.begin()};
  }
  return place->second.run;
}

void RunIndex::forget_some() {
  std::size_t sum = 0;
  std::vector<std::string> beyond;
  for (const std::string& id : newest_first_) {
    sum += runs_.at(id).run->bytes();
    if (sum > options_.most_bytes) beyond.push_back(id);
  }
  for (const std::string& id : beyond) {
    newest_first_.erase(runs_.at(id).place);
    runs_.erase(id);
  }
}

std::size_t RunIndex::bytes() {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [id, kept] : runs_) sum += kept.run->bytes();
  return sum;
}

}  // namespace lockstep
