#include "board/run_view.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>

#include "board/bounded_json.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"
#include "track/host_name.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr double kSilence = 60;  // seconds after which a run that says nothing is not running
constexpr std::size_t kLongestJobFile = 4 << 20;

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The number in "rank_12.jsonl".
std::optional<int> rank_of_file(std::string_view name) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".jsonl";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(std::min(name.size(), kEnd.size()));
  return parse_integer<int>(std::string(name));
}

// When a process was started, as /proc tells; tells it from a later one with the same number.
std::optional<std::uint64_t> start_of_process(std::int64_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string line, word;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(line.substr(name_end + 1));
  for (int number = 3; number <= 22; ++number) words >> word;
  return parse_integer<std::uint64_t>(word);
}

// Where a configuration says how many steps there will be; 0: it does not.
std::int64_t steps_of(const json& config) {
  if (!config.is_object()) return 0;
  for (const char* name : {"total_steps", "max_steps", "max-steps", "steps"}) {
    const auto found = config.find(name);
    if (found != config.end() && found->is_number()) return whole_of(config, name);
  }
  return 0;
}

json to_columns(const std::vector<CurveBucket>& buckets) {
  json steps = json::array(), times = json::array(), means = json::array();
  json mins = json::array(), maxes = json::array();
  bool spread = false;
  for (const CurveBucket& bucket : buckets) {
    steps.push_back(bucket.step);
    times.push_back(bucket.time);
    const bool none = bucket.count == 0;
    means.push_back(finite(bucket.mean()));
    mins.push_back(none ? json(nullptr) : finite(bucket.min));
    maxes.push_back(none ? json(nullptr) : finite(bucket.max));
    spread = spread || bucket.count > 1;
  }
  json all = {{"step", std::move(steps)}, {"time", std::move(times)}, {"mean", std::move(means)}};
  if (spread) {
    all["min"] = std::move(mins);
    all["max"] = std::move(maxes);
  }
  return all;
}

}  // namespace

RunView::RunView(const RootFolder& root, std::string id)
    : root_(root),
      id_(std::move(id)),
      events_(join_path(id_, "events.jsonl")),
      head_(join_path(id_, kHeadEvents)) {}

std::vector<int> RunView::ranks_in(std::string_view folder) const {
  std::vector<int> ranks;
  for (const FolderEntry& entry : root_.list(file(folder))) {
    const auto rank = rank_of_file(entry.name);
    if (rank && *rank >= 0 && entry.kind == FolderEntry::Kind::file) ranks.push_back(*rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<RankFile> RunView::rank_files() const {
  std::vector<RankFile> files;
  for (const int rank : ranks_in("metrics")) {
    files.push_back({rank, metrics_file(rank)});
  }
  return files;
}

std::string RunView::metrics_file(int rank) const {
  return join_path(id_, concat("metrics/rank_", rank, ".jsonl"));
}

std::string RunView::records_file(int rank) const {
  return join_path(id_, concat("records/rank_", rank, ".jsonl"));
}

MetricsView& RunView::metrics_of(int rank) {
  const auto [place, added] = metrics_.try_emplace(rank, metrics_file(rank));
  place->second.poll(root_);
  return place->second;
}

RecordsView& RunView::records_of(int rank) {
  const auto [place, added] = records_.try_emplace(rank, records_file(rank));
  place->second.poll(root_);
  return place->second;
}

void RunView::look() {
  events_.poll(root_);
  head_.poll(root_);
  glance_at(root_, id_, glance_);
  if (job().ended && !job_.empty()) return;  // nothing changes in it any more
  const auto text = root_.read(file("job.json"), kLongestJobFile);
  auto job = text ? parse_bounded(*text) : std::nullopt;
  if (job && job->is_object()) job_ = *std::move(job);
}

bool RunView::launcher_lives() const {
  const auto started = start_of_process(whole_of(job_, "pid"));
  return started && *started == static_cast<std::uint64_t>(whole_of(job_, "start_time"));
}

double RunView::changed() const {
  return std::max({events_.changed(), head_.changed(), glance_.changed});
}

// The launcher whose folder this is may have been lost, and the job have gone on without it.
EventsView::Job RunView::job() const {
  EventsView::Job job = events_.job();
  const EventsView::Job& head = head_.job();
  if (!job.started) return head;
  if (head.ended && head.end >= job.start) {
    job.ended = true;
    job.end = head.end;
    job.exit_code = head.exit_code;
    job.reason = head.reason;
  }
  return job;
}

std::string RunView::state() const {
  const EventsView::Job job = this->job();
  const bool speaks = now_since_1970() - changed() < kSilence;
  if (job.started) {
    if (job.ended) return job.exit_code == 0 ? "finished" : "failed";
    if (text_of(job_, "host") == host_name()) return launcher_lives() ? "running" : "lost";
    return speaks ? "running" : "silent";
  }
  if (glance_.end == RecordsView::End::succeeded) return "finished";
  if (glance_.end == RecordsView::End::failed) return "failed";
  return speaks ? "running" : "silent";
}

json RunView::summary() {
  const std::lock_guard lock(mutex_);
  look();
  const EventsView::Job job = this->job();
  const std::string folder = root_.path().substr(root_.path().rfind('/') + 1);
  return {{"id", id_},
          {"name", id_.empty() ? folder : id_},
          {"state", state()},
          {"start", job.started ? job.start : glance_.first_time},
          {"end", job.ended ? json(job.end) : json(nullptr)},
          {"updated", changed()},
          {"step", glance_.last_step},
          {"total_steps", steps_of(glance_.config)},
          {"world_size",
           job.world_size > 0 ? job.world_size : static_cast<int>(ranks_in("metrics").size())},
          {"host", text_of(job_, "host")},
          {"failures", job.failures},
          {"recoveries", events_.recoveries().size()},
          {"restarts", job.restarts},
          {"latest", glance_.latest}};
}

json RunView::overview() {
  json all = summary();
  const std::lock_guard lock(mutex_);
  const EventsView::Job job = this->job();
  const MetricsView& metrics = metrics_of(0);
  const RecordsView& records = records_of(0);
  note_bytes();
  json names = json::array(), sensors = json::array(), command = json::array();
  for (const auto& [name, curve] : metrics.curves()) {
    names.push_back(name);
    all["latest"][name] = finite(curve.last());
  }
  for (const auto& [name, curve] : records.system()) sensors.push_back(name);
  if (const auto words = job_.find("command"); words != job_.end() && words->is_array()) {
    command = *words;
  }
  // Steps are counted over the last tenth: a run may have begun slowly, or stood still for a night.
  double per_second = 0;
  if (!metrics.curves().empty()) {
    const auto& buckets = metrics.curves().begin()->second.buckets();
    const CurveBucket& from =
        buckets[buckets.size() - 1 - std::min(buckets.size() - 1, buckets.size() / 10 + 10)];
    const double seconds = buckets.back().time - from.time;
    if (seconds > 0) per_second = static_cast<double>(buckets.back().step - from.step) / seconds;
  }
  const auto total = all["total_steps"].get<std::int64_t>();
  const double left = static_cast<double>(total - metrics.last_step());
  all["steps_per_second"] = per_second;
  all["seconds_left"] = state() == "running" && per_second > 0 && total > 0 && left >= 0
                            ? json(left / per_second)
                            : json(nullptr);
  all["last_time"] = metrics.last_time();
  all["reason"] = job.reason;
  all["exit_code"] = job.ended ? json(job.exit_code) : json(nullptr);
  all["stragglers"] = job.stragglers;
  all["run_id"] = text_of(job_, "run_id");
  all["log_directory"] = text_of(job_, "log_directory");
  all["command"] = std::move(command);
  all["ranks"] = ranks_in("metrics");
  all["record_ranks"] = ranks_in("records");
  all["metrics"] = std::move(names);
  all["sensors"] = std::move(sensors);
  return all;
}

json RunView::series(int rank, const std::vector<std::string>& names, const CurveRange& range,
                     std::size_t points) {
  const std::lock_guard lock(mutex_);
  if (!root_.open_file(metrics_file(rank))) return nullptr;
  const MetricsView& metrics = metrics_of(rank);
  note_bytes();
  json all = json::object();
  for (const std::string& name : names) {
    all[name] = to_columns(metrics.range(root_, name, range, points));
  }
  return {{"run", id_}, {"rank", rank}, {"lines", metrics.lines()}, {"series", std::move(all)}};
}

json RunView::system(int rank) {
  const std::lock_guard lock(mutex_);
  if (!root_.open_file(records_file(rank))) return nullptr;
  json all = json::object();
  for (const auto& [name, curve] : records_of(rank).system()) {
    all[name] = to_columns(curve.buckets());
  }
  return {{"run", id_}, {"rank", rank}, {"series", std::move(all)}};
}

json RunView::events() {
  const std::lock_guard lock(mutex_);
  look();
  std::vector<json> list(events_.events().begin(), events_.events().end());
  for (const json& event : head_.events()) {
    // The nodes tell begin and end as well, as far as they live to do so.
    const std::string kind = text_of(event, "kind");
    const bool is_known = (kind == "job_start" && events_.job().started) ||
                          (kind == "job_end" && events_.job().ended);
    if (!is_known) list.push_back(event);
  }
  json stories = json::array();
  for (const json& event : records_of(0).events()) {
    json own = event;
    own["kind"] = text_of(event, "event");
    own["from"] = "program";
    list.push_back(std::move(own));
  }
  std::ranges::stable_sort(list, {}, [](const json& event) { return number_of(event, "time"); });
  for (const RecoveryStory& story : events_.recoveries()) {
    json stages = json::array();
    for (const auto& stage : story.stages) {
      stages.push_back({{"name", stage.name}, {"at_ms", stage.at_ms}});
    }
    stories.push_back({{"epoch", story.epoch},
                       {"time", story.time},
                       {"lost", story.lost},
                       {"reason", story.reason},
                       {"done", story.done},
                       {"step", story.step},
                       {"ms", story.ms},
                       {"stages", std::move(stages)}});
  }
  return {{"run", id_}, {"events", std::move(list)}, {"recoveries", std::move(stories)}};
}

json RunView::texts() {
  const std::lock_guard lock(mutex_);
  json list = json::array();
  for (const RecordsView::Text& text : records_of(0).texts()) {
    list.push_back(
        {{"step", text.step}, {"time", text.time}, {"name", text.name}, {"text", text.text}});
  }
  return {{"run", id_}, {"texts", std::move(list)}};
}

json RunView::config() {
  const std::lock_guard lock(mutex_);
  look();
  return {{"run", id_}, {"config", glance_.config}};
}

json RunView::pulse() {
  const std::lock_guard lock(mutex_);
  look();
  return {{"state", state()},
          {"step", glance_.last_step},
          {"fingerprint", glance_.fingerprint},
          {"events", events_.events().size() + head_.events().size()},
          {"changed", changed()}};
}

void RunView::note_bytes() {
  std::size_t sum = events_.bytes() + head_.bytes();
  for (const auto& [rank, view] : metrics_) sum += view.bytes();
  for (const auto& [rank, view] : records_) sum += view.bytes();
  bytes_ = sum;
}

}  // namespace lockstep
