#include "track/metrics_file.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "track/json_text.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::string content_of(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    throw SystemError(concat("cannot read ", path, ": ", std::strerror(errno)));
  }
  return text;
}

// Takes the next line that ends with a newline off the text.
bool take_line(std::string_view& text, std::string_view& line) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

std::int64_t integer_or(const json& object, const char* name, std::int64_t otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>()
                                                             : otherwise;
}

}  // namespace

std::optional<MetricLine> parse_metric_line(std::string_view line) {
  json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || value.contains("kind")) return std::nullopt;
  const auto step = value.find("step"), time = value.find("time");
  if (step == value.end() || !step->is_number_integer()) return std::nullopt;
  if (time == value.end() || !time->is_number()) return std::nullopt;
  MetricLine found{.step = step->get<std::int64_t>(), .time = time->get<double>(), .values = {}};
  value.erase("step");
  value.erase("time");
  found.values = std::move(value);
  return found;
}

// Written piece by piece: it is done for every step of some runs.
std::string metric_line(std::int64_t step, double time, const json& values) {
  std::string text;
  text.reserve(64 + 40 * values.size());
  text += "{\"step\":" + std::to_string(step) + ",\"time\":";
  append_json_number(text, time);
  for (const auto& [name, value] : values.items()) {
    if (name == "step" || name == "time") continue;
    text += ',';
    append_json_name(text, name);
    text += ':';
    append_json_value(text, value);
  }
  return text + "}";
}

MetricsContent parse_metrics(std::string_view text) {
  MetricsContent content;
  for (std::string_view line; take_line(text, line);) {
    if (auto found = parse_metric_line(line)) {
      content.lines.push_back(std::move(*found));
    } else {
      ++content.skipped;
    }
  }
  return content;
}

MetricsContent read_metrics(const std::string& path) {
  return parse_metrics(content_of(path));
}

std::vector<json> parse_track_records(std::string_view text) {
  std::vector<json> records;
  for (std::string_view line; take_line(text, line);) {
    json record = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("kind")) continue;
    if (record["kind"] == "start") {
      const std::int64_t step = integer_or(record, "step", 0);
      std::erase_if(records, [step](const json& earlier) {
        return earlier.contains("step") && earlier["kind"] != "start" &&
               integer_or(earlier, "step", step) > step;
      });
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<json> read_track_records(const std::string& path) {
  return parse_track_records(content_of(path));
}

Continuation keep_metrics(const std::string& path, const TrackPlace& place) {
  const std::string text = content_of(path);
  Continuation start{.resumed = true, .place = place};
  std::string_view rest = text;
  std::size_t bytes = 0;
  for (std::string_view line; start.kept < place.lines && take_line(rest, line);) {
    auto found = parse_metric_line(line);
    if (!found || found->step > place.step) break;
    bytes = text.size() - rest.size();
    ++start.kept;
    if (start.tail.size() == kTailLines) start.tail.erase(start.tail.begin());
    start.tail.push_back(std::move(*found));
  }
  if (bytes != text.size()) write_durably(path, std::string_view(text).substr(0, bytes));
  return start;
}

void cut_torn_line(const std::string& path) {
  const std::string text = content_of(path);
  const std::size_t end = text.rfind('\n');
  const std::size_t whole = end == std::string::npos ? 0 : end + 1;
  if (whole == text.size()) return;
  if (::truncate(path.c_str(), static_cast<off_t>(whole)) != 0) {
    throw_errno(concat("cannot cut ", path));
  }
}

}  // namespace lockstep
