#include <limits>

#include "launch/failure_report.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxPlace = 4 << 10;  // hosts, times, paths
constexpr std::size_t kMaxWords = 16 << 10;
constexpr std::size_t kMaxTailLines = 32;
constexpr std::size_t kMaxTailLine = 2 << 10;
constexpr std::size_t kMaxFailures = 2048;
constexpr std::size_t kMaxShort = 256;
constexpr std::size_t kMaxRanks = 1 << 20;

Json error_to_json(const ErrorFile& error) {
  Json json = {{"path", clipped(error.path, kMaxPlace)},
               {"message", clipped(error.message, kMaxWords)},
               {"callstack", clipped(error.callstack, kMaxWords)}};
  if (error.timestamp) json["timestamp"] = *error.timestamp;
  if (error.error_code) json["error_code"] = *error.error_code;
  // A cut copy would not be JSON any more.
  if (error.json.size() <= kMaxErrorFileCopy) json["json"] = error.json;
  if (!error.malformed.empty()) json["malformed"] = clipped(error.malformed, kMaxWords);
  return json;
}

Json failure_to_json(const WorkerFailure& failure) {
  Json json = {{"rank", failure.rank},
               {"local_rank", failure.local_rank},
               {"host", clipped(failure.host, kMaxPlace)},
               {"node_rank", failure.node_rank},
               {"pid", failure.pid},
               {"exit_code", failure.status.exit_code},
               {"signal", failure.status.signal},
               {"time", clipped(failure.time, kMaxPlace)},
               {"log_path", clipped(failure.log_path, kMaxPlace)},
               {"epoch", failure.epoch},
               {"restart_count", failure.restart_count}};
  if (failure.error) json["error"] = error_to_json(*failure.error);
  Json tail = Json::array();
  const std::size_t count = std::min(failure.stderr_tail.size(), kMaxTailLines);
  for (auto line = failure.stderr_tail.end() - static_cast<std::ptrdiff_t>(count);
       line != failure.stderr_tail.end(); ++line) {
    tail.push_back(clipped(*line, kMaxTailLine));
  }
  json["stderr_tail"] = std::move(tail);
  return json;
}

// Of later failures only what their one line shows is kept: a thousand ranks must fit a message.
WorkerFailure summary_of(const WorkerFailure& failure) {
  WorkerFailure summary = failure;
  if (summary.error) {
    summary.error->message = clipped(first_line(summary.error->message), kMaxShort);
    summary.error->callstack.clear();
    summary.error->json.clear();
  }
  if (!summary.stderr_tail.empty()) {
    summary.stderr_tail = {clipped(summary.stderr_tail.back(), kMaxShort)};
  }
  return summary;
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(concat("failure report: ", what));
}

int required_int(const Json& object, const char* name) {
  const auto value = integer_field(object, name);
  if (!value || *value < std::numeric_limits<int>::min() ||
      *value > std::numeric_limits<int>::max()) {
    refuse(concat("'", name, "' is missing or no number in range"));
  }
  return static_cast<int>(*value);
}

std::string required_text(const Json& object, const char* name, std::size_t max_bytes) {
  auto value = string_field(object, name, max_bytes);
  if (!value) refuse(concat("'", name, "' is missing or no text"));
  return *std::move(value);
}

const Json& required_array(const Json& object, const char* name, std::size_t max_size) {
  const Json* value = field(object, name);
  if (value == nullptr || !value->is_array() || value->size() > max_size) {
    refuse(concat("'", name, "' is missing, no list, or longer than ", max_size));
  }
  return *value;
}

ErrorFile error_from_json(const Json& json) {
  return {.path = required_text(json, "path", kMaxPlace),
          .message = required_text(json, "message", kMaxWords),
          .callstack = required_text(json, "callstack", kMaxWords),
          .timestamp = integer_field(json, "timestamp"),
          .error_code = integer_field(json, "error_code"),
          .json = string_field(json, "json", kMaxErrorFileCopy).value_or(""),
          .malformed = string_field(json, "malformed", kMaxWords).value_or("")};
}

WorkerFailure failure_from_json(const Json& json) {
  WorkerFailure failure = {
      .rank = required_int(json, "rank"),
      .local_rank = required_int(json, "local_rank"),
      .host = required_text(json, "host", kMaxPlace),
      .node_rank = required_int(json, "node_rank"),
      .pid = required_int(json, "pid"),
      .status = {.exit_code = required_int(json, "exit_code"),
                 .signal = required_int(json, "signal")},
      .time = required_text(json, "time", kMaxPlace),
      .log_path = required_text(json, "log_path", kMaxPlace),
      .epoch = static_cast<std::uint64_t>(integer_field(json, "epoch").value_or(0)),
      .restart_count = required_int(json, "restart_count")};
  if (const Json* error = field(json, "error")) failure.error = error_from_json(*error);
  for (const Json& line : required_array(json, "stderr_tail", kMaxTailLines)) {
    if (!line.is_string()) refuse("a line of 'stderr_tail' is no text");
    failure.stderr_tail.push_back(clipped(line.get_ref<const std::string&>(), kMaxTailLine));
  }
  return failure;
}

std::vector<int> ranks_of(const Json& json, const char* name) {
  std::vector<int> ranks;
  for (const Json& rank : required_array(json, name, kMaxRanks)) {
    if (!rank.is_number_integer()) refuse(concat("a member of '", name, "' is no number"));
    ranks.push_back(rank.get<int>());
  }
  return ranks;
}

Json parsed(std::string_view text) {
  auto json = parse_json(text);
  if (!json || !json->is_object()) refuse("not a JSON object");
  return *std::move(json);
}

}  // namespace

std::string to_json(const WorkerFailure& failure) {
  return dump_json(failure_to_json(failure));
}

std::string to_json(const FailureReport& report) {
  Json json = {{"program", clipped(report.program, kMaxPlace)},
               {"reason", clipped(report.reason, kMaxWords)},
               {"more_failed", report.more_failed},
               {"stopped_ranks", report.stopped_ranks}};
  if (report.first) json["first"] = failure_to_json(*report.first);
  Json others = Json::array();
  for (const WorkerFailure& other : report.others) {
    if (others.size() < kMaxFailures) others.push_back(failure_to_json(summary_of(other)));
  }
  json["others"] = std::move(others);
  return dump_json(json);
}

WorkerFailure worker_failure_from_json(std::string_view json) {
  return failure_from_json(parsed(json));
}

FailureReport failure_report_from_json(std::string_view text) {
  const Json json = parsed(text);
  FailureReport report;
  report.program = required_text(json, "program", kMaxPlace);
  report.reason = required_text(json, "reason", kMaxWords);
  if (const Json* first = field(json, "first")) report.first = failure_from_json(*first);
  for (const Json& other : required_array(json, "others", kMaxFailures)) {
    report.others.push_back(failure_from_json(other));
  }
  report.more_failed = ranks_of(json, "more_failed");
  report.stopped_ranks = ranks_of(json, "stopped_ranks");
  return report;
}

}  // namespace lockstep
