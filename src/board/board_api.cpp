#include "board/board_api.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>

#include "board/bounded_json.h"
#include "board/run_folders.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kFresh = std::chrono::milliseconds(500);
constexpr std::size_t kMostRecent = 64;
constexpr std::size_t kMostRecentBytes = 2 << 20;  // of one answer that is kept
constexpr std::size_t kMostSeries = 64;

std::string parameter(const BoardQuery& query, const char* name) {
  const auto found = query.find(name);
  return found == query.end() ? "" : found->second;
}

std::int64_t integer_parameter(const BoardQuery& query, const char* name, std::int64_t otherwise) {
  const std::string text = parameter(query, name);
  if (text.empty()) return otherwise;
  const auto value = parse_integer<std::int64_t>(text);
  if (!value) throw InvalidArgument(concat(name, " is no whole number"));
  return *value;
}

double number_parameter(const BoardQuery& query, const char* name) {
  const std::string text = parameter(query, name);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!text.empty() && (!whole || !std::isfinite(value))) {
    throw InvalidArgument(concat(name, " is no number"));
  }
  return value;
}

std::size_t count_parameter(const BoardQuery& query, const char* name, std::int64_t otherwise,
                            std::int64_t most) {
  const std::int64_t value = integer_parameter(query, name, otherwise);
  return static_cast<std::size_t>(std::clamp<std::int64_t>(value, 1, most));
}

int rank_parameter(const BoardQuery& query) {
  const std::int64_t rank = integer_parameter(query, "rank", 0);
  if (rank < 0 || rank > 10'000'000) throw InvalidArgument("there is no such rank");
  return static_cast<int>(rank);
}

BoardAnswer refusal(int status, std::string_view why) {
  return {status, dump_text({{"error", why}})};
}

// A colour shows no more, and the map has ten thousand of them.
double five_digits(double value) {
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%.5g", value);
  std::from_chars(text, text + length, value);
  return value;
}

json to_json(const RankMap& map, const std::string& name) {
  json times = json::array(), values = json::array();
  for (const double time : map.times) times.push_back(finite(time));
  for (const auto& row : map.values) {
    json cells = json::array();
    for (const double value : row) cells.push_back(finite(five_digits(value)));
    values.push_back(std::move(cells));
  }
  return {{"name", name},
          {"ranks", map.ranks},
          {"first_step", map.first_step},
          {"last_step", map.last_step},
          {"times", std::move(times)},
          {"values", std::move(values)}};
}

}  // namespace

BoardApi::BoardApi(const RootFolder& root, const RunIndex::Options& options)
    : root_(root), index_(root, options) {}

std::shared_ptr<BoardApi::Recent> BoardApi::recent(const std::string& key) {
  const std::lock_guard lock(mutex_);
  if (recent_.size() >= kMostRecent && !recent_.contains(key)) {
    // Whoever still waits for one of these has it.
    std::erase_if(recent_, [](const auto& each) { return each.second.use_count() == 1; });
  }
  auto& place = recent_[key];
  if (!place) place = std::make_shared<Recent>();
  return place;
}

// Of all files that such an answer is made of: it holds as long as they do.
std::string BoardApi::fingerprint_of(const std::string& path, const BoardQuery& query) const {
  constexpr std::array<std::string_view, 5> kOfFiles{"/api/series", "/api/ranks", "/api/events",
                                                     "/api/texts", "/api/system"};
  const std::string run = parameter(query, "run");
  if (std::ranges::find(kOfFiles, path) == kOfFiles.end()) return "";
  std::string all;
  for (const char* folder : {"", "metrics", "records"}) {
    for (const FolderEntry& entry : root_.list(join_path(run, folder))) {
      if (entry.kind != FolderEntry::Kind::file) continue;
      all += concat(entry.name, '/', entry.bytes, '/', std::to_string(entry.changed), '\n');
    }
  }
  return all;
}

std::shared_ptr<const BoardAnswer> BoardApi::get(const std::string& path, const BoardQuery& query) {
  std::string key = path;
  for (const auto& [name, value] : query) key += concat('\n', name, '\t', value);
  const std::shared_ptr<Recent> known = recent(key);
  std::unique_lock working(known->working, std::defer_lock);
  std::shared_ptr<const BoardAnswer> before;
  {
    const std::lock_guard lock(known->holding);
    before = known->answer;
    if (before && (Clock::now() - known->looked < kFresh || !working.try_lock())) return before;
  }
  if (!working.owns_lock()) {
    working.lock();
    // Somebody else may have made it while this one waited.
    const std::lock_guard lock(known->holding);
    if (known->answer) return known->answer;
  }
  std::string fingerprint = fingerprint_of(path, query);
  if (before && !fingerprint.empty() && fingerprint == known->fingerprint) {
    const std::lock_guard lock(known->holding);
    known->looked = Clock::now();
    return before;
  }
  std::shared_ptr<const BoardAnswer> fresh;
  try {
    fresh = std::make_shared<const BoardAnswer>(answer(path, query));
  } catch (const InvalidArgument& error) {
    return std::make_shared<const BoardAnswer>(refusal(400, error.what()));
  }
  if (fresh->body.size() <= kMostRecentBytes) {
    const std::lock_guard lock(known->holding);
    known->answer = fresh;
    known->fingerprint = std::move(fingerprint);
    known->looked = Clock::now();
  }
  return fresh;
}

BoardAnswer BoardApi::answer(const std::string& path, const BoardQuery& query) {
  if (path == "/api/runs") return {200, dump_text(runs())};
  const std::string id = parameter(query, "run");
  const auto run = query.contains("run") ? index_.find(id) : nullptr;
  constexpr std::string_view kBegin = "/api/";
  if (!run) return refusal(404, "there is no such run");
  const json value = of_run(*run, std::string_view(path).substr(kBegin.size()), query);
  if (value.is_null()) return refusal(404, "there is nothing of that name");
  return {200, dump_text(value)};
}

json BoardApi::runs() {
  json list = json::array();
  for (const std::string& id : index_.ids()) {
    if (const auto run = index_.find(id)) list.push_back(run->summary());
  }
  return {{"directory", root_.path()}, {"runs", std::move(list)}};
}

json BoardApi::of_run(RunView& run, std::string_view what, const BoardQuery& query) {
  if (what == "run") return run.overview();
  if (what == "events") return run.events();
  if (what == "config") return run.config();
  if (what == "texts") return run.texts();
  if (what == "system") return run.system(rank_parameter(query));
  if (what == "snapshots") {
    return {{"run", run.id()}, {"snapshots", snapshots_of(root_, run.id())}};
  }
  if (what == "logs") return {{"run", run.id()}, {"logs", logs_of(root_, run.id())}};
  if (what == "log") {
    return read_log(root_, run.id(),
                    {.file = parameter(query, "file"),
                     .offset = integer_parameter(query, "offset", -1),
                     .bytes = integer_parameter(query, "bytes", 65'536),
                     .find = parameter(query, "find")});
  }
  if (what == "series") {
    std::vector<std::string> names;
    const auto [first, last] = query.equal_range("name");
    for (auto each = first; each != last; ++each) names.push_back(each->second);
    if (names.size() > kMostSeries) throw InvalidArgument("at most 64 names at a time");
    const CurveRange range{.by_time = parameter(query, "axis") == "time",
                           .from = number_parameter(query, "from"),
                           .to = number_parameter(query, "to")};
    return run.series(rank_parameter(query), names, range,
                      count_parameter(query, "points", 600, 4000));
  }
  if (what == "ranks") {
    const std::string name = parameter(query, "name");
    return to_json(
        read_rank_map(root_, run.rank_files(), name, count_parameter(query, "columns", 160, 1000)),
        name);
  }
  return nullptr;
}

std::string BoardApi::pulse(const std::string* id) {
  if (id != nullptr) {
    const auto run = index_.find(*id);
    return run ? dump_text(run->pulse()) : "";
  }
  // The list that everybody asks for, so that it is made once for all who wait for news.
  const std::string list = get("/api/runs", {})->body;
  return dump_text({{"runs", std::hash<std::string>()(list)}});
}

}  // namespace lockstep
