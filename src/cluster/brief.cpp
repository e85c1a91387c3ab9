#include "cluster/brief.h"

#include <limits>

#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kFormat = 1;
constexpr int kMost = 10'000'000;

[[noreturn]] void refuse(const char* name, const char* what) {
  throw InvalidArgument(concat("the brief's field '", name, "' is ", what));
}

const Json& required(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (value == nullptr) refuse(name, "missing");
  return *value;
}

std::string text(const Json& object, const char* name) {
  const Json& value = required(object, name);
  if (!value.is_string()) refuse(name, "no text");
  return value.get<std::string>();
}

int number(const Json& object, const char* name, int low) {
  required(object, name);
  const auto value = integer_field(object, name);
  if (!value || *value < low || *value > kMost) refuse(name, "no number in its range");
  return static_cast<int>(*value);
}

std::vector<std::string> texts(const Json& object, const char* name) {
  const Json& list = required(object, name);
  if (!list.is_array()) refuse(name, "no list");
  std::vector<std::string> all;
  for (const Json& item : list) {
    if (!item.is_string()) refuse(name, "no list of texts");
    all.push_back(item.get<std::string>());
  }
  return all;
}

Environment::Variables variables(const Json& object, const char* name) {
  const Json& map = required(object, name);
  if (!map.is_object()) refuse(name, "no table");
  Environment::Variables all;
  for (const auto& [key, value] : map.items()) {
    if (!value.is_string()) refuse(name, "no table of texts");
    if (key.empty() || key.find('=') != std::string::npos || key.find('\0') != std::string::npos) {
      refuse(name, "no table of variables");
    }
    all[key] = value.get<std::string>();
  }
  return all;
}

std::vector<int> numbers(const Json& object, const char* name) {
  const Json& list = required(object, name);
  if (!list.is_array()) refuse(name, "no list");
  std::vector<int> all;
  for (const Json& item : list) {
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kMost) {
      refuse(name, "no list of numbers");
    }
    all.push_back(item.get<int>());
  }
  return all;
}

}  // namespace

std::string encode(const Brief& brief) {
  std::vector<std::string> endpoints;
  for (const Endpoint& endpoint : brief.endpoints) endpoints.push_back(endpoint.to_string());
  Json json{{"format", kFormat},
            {"version", brief.version},
            {"host", brief.host},
            {"node_rank", brief.node_rank},
            {"min_nodes", brief.min_nodes},
            {"max_nodes", brief.max_nodes},
            {"endpoints", endpoints},
            {"secret", brief.secret},
            {"run_id", brief.run_id},
            {"command", brief.command == LaunchCommand::run ? "run" : "launch"},
            {"arguments", brief.arguments},
            {"option_variables", Json::object()},
            {"environment", Json::object()},
            {"working_directory", brief.working_directory},
            {"gpus", brief.gpus}};
  for (const auto& [name, value] : brief.option_variables) json["option_variables"][name] = value;
  for (const auto& [name, value] : brief.environment) json["environment"][name] = value;
  if (brief.workers) json["workers"] = *brief.workers;
  return dump_json(json);
}

Brief decode_brief(std::string_view text_of_brief) {
  const auto json = parse_json(text_of_brief);
  if (!json || !json->is_object()) throw InvalidArgument("the brief is no JSON object");
  if (const int format = number(*json, "format", 0); format != kFormat) {
    throw InvalidArgument(concat("the brief has format ", format, ", this lockstep knows ", kFormat,
                                 ": install the same version on all machines"));
  }
  Brief brief{.version = text(*json, "version"),
              .host = text(*json, "host"),
              .node_rank = number(*json, "node_rank", 0),
              .min_nodes = number(*json, "min_nodes", 1),
              .max_nodes = number(*json, "max_nodes", 1),
              .endpoints = {},
              .secret = text(*json, "secret"),
              .run_id = text(*json, "run_id"),
              .command = LaunchCommand::run,
              .arguments = texts(*json, "arguments"),
              .option_variables = variables(*json, "option_variables"),
              .environment = variables(*json, "environment"),
              .working_directory = text(*json, "working_directory"),
              .workers = std::nullopt,
              .gpus = numbers(*json, "gpus")};
  const std::string command = text(*json, "command");
  if (command != "run" && command != "launch") refuse("command", "neither run nor launch");
  if (command == "launch") brief.command = LaunchCommand::launch;
  for (const std::string& endpoint : texts(*json, "endpoints")) {
    brief.endpoints.push_back(parse_endpoint(endpoint, 0, "the brief's endpoint"));
  }
  if (brief.endpoints.empty()) refuse("endpoints", "empty");
  if (brief.min_nodes > brief.max_nodes || brief.node_rank >= brief.max_nodes) {
    refuse("node_rank", "beyond the number of nodes");
  }
  if (field(*json, "workers") != nullptr) brief.workers = text(*json, "workers");
  return brief;
}

}  // namespace lockstep
