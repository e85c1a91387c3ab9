#include <fstream>
#include <limits>
#include <sstream>

#include "core/parse_integer.h"
#include "launch/json_fields.h"
#include "launch/run_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxField = 64 << 10;

int int_field(const Json& object, const char* name, int otherwise) {
  const auto value = integer_field(object, name);
  const bool fits = value && *value >= std::numeric_limits<int>::min() &&
                    *value <= std::numeric_limits<int>::max();
  return fits ? static_cast<int>(*value) : otherwise;
}

std::uint64_t count_field(const Json& object, const char* name) {
  return static_cast<std::uint64_t>(integer_field(object, name).value_or(0));
}

std::string text_field(const Json& object, const char* name) {
  return string_field(object, name, kMaxField).value_or("");
}

WorkerRecord worker_from(const Json& json) {
  return {.rank = int_field(json, "rank", -1),
          .local_rank = int_field(json, "local_rank", -1),
          .pid = int_field(json, "pid", -1),
          .start_time = count_field(json, "start_time")};
}

}  // namespace

std::string to_json(const JobRecord& record) {
  Json workers = Json::array();
  for (const WorkerRecord& worker : record.workers) {
    workers.push_back({{"rank", worker.rank},
                       {"local_rank", worker.local_rank},
                       {"pid", worker.pid},
                       {"start_time", worker.start_time}});
  }
  const nlohmann::ordered_json json = {{"run_id", record.run_id},
                                       {"host", record.host},
                                       {"pid", record.pid},
                                       {"start_time", record.start_time},
                                       {"started", record.started},
                                       {"command", record.command},
                                       {"epoch", record.epoch},
                                       {"node_rank", record.node_rank},
                                       {"world_size", record.world_size},
                                       {"left_out", record.left_out},
                                       {"log_directory", record.log_directory},
                                       {"workers", workers}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::optional<JobRecord> job_record_from_json(std::string_view text) {
  const auto json = parse_json(text);
  if (!json || !integer_field(*json, "pid")) return std::nullopt;
  JobRecord record = {.run_id = text_field(*json, "run_id"),
                      .host = text_field(*json, "host"),
                      .pid = int_field(*json, "pid", -1),
                      .start_time = count_field(*json, "start_time"),
                      .started = text_field(*json, "started"),
                      .command = {},
                      .epoch = count_field(*json, "epoch"),
                      .node_rank = int_field(*json, "node_rank", -1),
                      .world_size = int_field(*json, "world_size", 0),
                      .left_out = {},
                      .log_directory = text_field(*json, "log_directory"),
                      .workers = {}};
  if (const Json* command = field(*json, "command"); command != nullptr && command->is_array()) {
    for (const Json& word : *command) {
      if (word.is_string()) record.command.push_back(word.get<std::string>());
    }
  }
  if (const Json* places = field(*json, "left_out"); places != nullptr && places->is_array()) {
    for (const Json& place : *places) {
      if (place.is_number_integer()) record.left_out.push_back(place.get<int>());
    }
  }
  if (const Json* workers = field(*json, "workers"); workers != nullptr && workers->is_array()) {
    for (const Json& worker : *workers) record.workers.push_back(worker_from(worker));
  }
  return record;
}

std::optional<std::uint64_t> process_start_time(pid_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The second field is the program's name in parentheses, and may hold blanks and parentheses.
  // The start time is the 22nd.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return parse_integer<std::uint64_t>(field);
}

}  // namespace lockstep
