#include "board/run_glance.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>

#include "board/bounded_json.h"
#include "board/metric_scan.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::int64_t kHeadBytes = 256 << 10;
constexpr std::int64_t kTailBytes = 64 << 10;

struct Ends {
  UniqueFd file;
  std::int64_t bytes = 0;
  double changed = 0;

  Ends(const RootFolder& root, const std::string& path) : file(root.open_file(path)) {
    struct stat about {};
    if (!file || ::fstat(file.get(), &about) != 0) return;
    bytes = about.st_size;
    changed = static_cast<double>(about.st_mtim.tv_sec) + 1e-9 * about.st_mtim.tv_nsec;
  }

  // Whole lines of a part of the file.
  template <typename Take>
  void lines(std::int64_t begin, std::int64_t count, const Take& take) const {
    std::string text(static_cast<std::size_t>(count), '\0');
    const ssize_t got = file ? ::pread(file.get(), text.data(), text.size(), begin) : 0;
    std::string_view rest(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    if (begin > 0) rest.remove_prefix(std::min(rest.size(), rest.find('\n')));
    for (std::size_t newline; (newline = rest.find('\n')) != rest.npos;
         rest.remove_prefix(newline + 1)) {
      if (newline > 0) take(rest.substr(0, newline));
    }
  }

  template <typename Take>
  void tail(const Take& take) const {
    const std::int64_t begin = std::max<std::int64_t>(0, bytes - kTailBytes);
    lines(begin, bytes - begin, take);
  }
};

void glance_at_metrics(const Ends& metrics, RunGlance& glance) {
  ScannedMetrics found;
  metrics.lines(0, std::min(metrics.bytes, kTailBytes), [&](std::string_view line) {
    if (glance.first_time == 0 && scan_metrics(line, found)) glance.first_time = found.time;
  });
  std::string last;
  metrics.tail([&](std::string_view line) { last = line; });
  if (!scan_metrics(last, found)) return;
  glance.last_time = found.time;
  glance.last_step = found.step;
  for (const auto& [name, value] : found.values) glance.latest[std::string(name)] = finite(value);
}

void glance_at_records(const Ends& records, RunGlance& glance) {
  const auto take = [&](std::string_view line) {
    // Few lines are of these kinds, and the others may be long.
    if (line.find("\"start\"") == line.npos && line.find("\"end\"") == line.npos) return;
    const auto record = parse_bounded(line);
    if (!record || !record->is_object()) return;
    const std::string kind = text_of(*record, "kind");
    if (kind == "start") {
      if (record->contains("config")) glance.config = (*record)["config"];
      glance.end = RecordsView::End::none;
    } else if (kind == "end") {
      const auto found = record->find("succeeded");
      const bool well = found != record->end() && *found == true;
      glance.end = well ? RecordsView::End::succeeded : RecordsView::End::failed;
    }
  };
  records.lines(0, std::min(records.bytes, kHeadBytes), take);
  if (records.bytes > kHeadBytes) records.tail(take);
}

}  // namespace

void glance_at(const RootFolder& root, const std::string& id, RunGlance& glance) {
  const Ends metrics(root, join_path(id, "metrics/rank_0.jsonl"));
  const Ends records(root, join_path(id, "records/rank_0.jsonl"));
  const double changed = std::max(metrics.changed, records.changed);
  const std::int64_t fingerprint = metrics.bytes * 31 + records.bytes;
  if (fingerprint == glance.fingerprint && changed == glance.changed) return;
  glance = {.changed = changed, .fingerprint = fingerprint};
  glance_at_metrics(metrics, glance);
  glance_at_records(records, glance);
  if (!glance.config.empty()) return;
  // Of programs that write a file of their own.
  const auto text = root.read(join_path(id, "config.json"), std::size_t{4} << 20);
  auto config = text ? parse_bounded(*text) : std::nullopt;
  if (config && config->is_object()) glance.config = *std::move(config);
}

}  // namespace lockstep
