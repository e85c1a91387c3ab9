#include <array>
#include <cmath>

#include "doctor/messages.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostText = 2000;
constexpr std::size_t kMostFindings = 1000;
constexpr std::size_t kMostEntries = 256;

[[noreturn]] void refuse(const char* name) {
  throw InvalidArgument(concat("a message of the doctor has no valid '", name, "'"));
}

std::string text(const Json& object, const char* name) {
  auto value = string_field(object, name, kMostText);
  if (!value) refuse(name);
  return *std::move(value);
}

std::int64_t integer(const Json& object, const char* name, std::int64_t least, std::int64_t most) {
  const auto value = integer_field(object, name);
  if (!value || *value < least || *value > most) refuse(name);
  return *value;
}

int whole(const Json& object, const char* name, int least, int most) {
  return static_cast<int>(integer(object, name, least, most));
}

double number(const Json& value, const char* name) {
  if (!value.is_number()) refuse(name);
  const double result = value.get<double>();
  if (!std::isfinite(result) || result < 0) refuse(name);
  return result;
}

double number_in(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (value == nullptr) refuse(name);
  return number(*value, name);
}

bool truth(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (value == nullptr || !value->is_boolean()) refuse(name);
  return value->get<bool>();
}

const Json& list(const Json& object, const char* name, std::size_t most = kMostEntries) {
  const Json* value = field(object, name);
  if (value == nullptr || !value->is_array() || value->size() > most) refuse(name);
  return *value;
}

std::vector<std::string> texts(const Json& object, const char* name) {
  std::vector<std::string> result;
  for (const Json& each : list(object, name)) {
    if (!each.is_string()) refuse(name);
    result.push_back(clipped(each.get_ref<const std::string&>(), kMostText));
  }
  return result;
}

FindingLevel level_of(const std::string& word) {
  for (const FindingLevel level :
       {FindingLevel::ok, FindingLevel::note, FindingLevel::warning, FindingLevel::error}) {
    if (word == to_string(level)) return level;
  }
  refuse("level");
}

constexpr std::array<const char*, 3> kActions = {"write", "look", "remove"};

MarkAction action_of(const std::string& word) {
  for (std::size_t at = 0; at < kActions.size(); ++at) {
    if (word == kActions[at]) return static_cast<MarkAction>(at);
  }
  refuse("action");
}

// A name in the shared folder must not lead out of it.
std::string mark_name(const Json& json) {
  std::string name = text(json, "name");
  const bool plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
  if (name.empty() || !plain) refuse("name");
  return name;
}

// Each content: its name, its fields, and back.

Json put(const NodeHello& hello) {
  Json findings = Json::array();
  for (const Finding& each : hello.findings) {
    findings.push_back({{"check", each.check},
                        {"level", to_string(each.level)},
                        {"what", each.what},
                        {"cure", each.cure}});
  }
  Json listeners = Json::array();
  for (const ProbeListener& each : hello.listeners) {
    listeners.push_back(
        {{"address", each.address}, {"bits", each.prefix_bits}, {"port", each.port}});
  }
  return {{"kind", "hello"},        {"id", hello.id},         {"host", hello.host},
          {"findings", findings},   {"traits", hello.traits}, {"listeners", listeners},
          {"python", hello.python}, {"gpus", hello.gpus}};
}

NodeHello take_hello(const Json& json) {
  NodeHello hello{.id = text(json, "id"), .host = text(json, "host")};
  for (const Json& each : list(json, "findings", kMostFindings)) {
    hello.findings.push_back({.node = hello.host,
                              .check = text(each, "check"),
                              .level = level_of(text(each, "level")),
                              .what = text(each, "what"),
                              .cure = text(each, "cure")});
  }
  const Json* traits = field(json, "traits");
  if (traits == nullptr || !traits->is_object() || traits->size() > kMostEntries) refuse("traits");
  for (const auto& [name, value] : traits->items()) {
    if (!value.is_string()) refuse("traits");
    hello.traits[clipped(name, kMostText)] =
        clipped(value.get_ref<const std::string&>(), kMostText);
  }
  for (const Json& each : list(json, "listeners")) {
    hello.listeners.push_back({.address = text(each, "address"),
                               .prefix_bits = whole(each, "bits", 0, 128),
                               .port = whole(each, "port", 1, 65535)});
  }
  hello.python = text(json, "python");
  hello.gpus = whole(json, "gpus", 0, 1 << 20);
  return hello;
}

Json put(const ClockQuestion&) {
  return {{"kind", "clock?"}};
}
Json put(const ClockAnswer& answer) {
  return {{"kind", "clock"}, {"wall_ns", answer.wall_ns}};
}
Json put(const NamesQuestion& question) {
  return {{"kind", "names?"}, {"hosts", question.hosts}};
}

Json put(const NamesAnswer& answer) {
  Json names = Json::array();
  for (const NamesAnswer::Name& each : answer.names) {
    names.push_back({{"addresses", each.addresses}, {"problem", each.problem}});
  }
  return {{"kind", "names"}, {"names", names}};
}

NamesAnswer take_names(const Json& json) {
  NamesAnswer answer;
  for (const Json& each : list(json, "names")) {
    answer.names.push_back(
        {.addresses = texts(each, "addresses"), .problem = text(each, "problem")});
  }
  return answer;
}

Json put(const ProbeQuestion& question) {
  Json targets = Json::array();
  for (const WayTarget& each : question.targets) {
    targets.push_back({{"address", each.address}, {"port", each.port}, {"measure", each.measure}});
  }
  return {{"kind", "probe?"}, {"id", question.id}, {"targets", targets}};
}

ProbeQuestion take_probe_question(const Json& json) {
  ProbeQuestion question{.id = text(json, "id")};
  for (const Json& each : list(json, "targets")) {
    question.targets.push_back({.address = text(each, "address"),
                                .port = whole(each, "port", 1, 65535),
                                .measure = truth(each, "measure")});
  }
  return question;
}

Json put(const ProbeAnswer& answer) {
  Json ways = Json::array();
  for (const ProbeAnswer::Way& each : answer.ways) {
    Json way = {{"problem", each.problem},
                {"latency_us", each.latency_us},
                {"least_latency_us", each.least_latency_us},
                {"mtu", each.path_mtu},
                {"stalled", each.stalled}};
    if (each.bytes_per_second) way["bytes_per_second"] = *each.bytes_per_second;
    ways.push_back(std::move(way));
  }
  return {{"kind", "probe"}, {"ways", ways}};
}

ProbeAnswer take_probe_answer(const Json& json) {
  ProbeAnswer answer;
  for (const Json& each : list(json, "ways")) {
    ProbeAnswer::Way way{.problem = text(each, "problem"),
                         .latency_us = number_in(each, "latency_us"),
                         .least_latency_us = number_in(each, "least_latency_us"),
                         .path_mtu = whole(each, "mtu", 0, 1 << 20),
                         .stalled = truth(each, "stalled")};
    if (const Json* rate = field(each, "bytes_per_second")) {
      way.bytes_per_second = number(*rate, "bytes_per_second");
    }
    answer.ways.push_back(std::move(way));
  }
  return answer;
}

Json put(const MarkQuestion& question) {
  return {{"kind", "mark?"},
          {"action", kActions[static_cast<std::size_t>(question.action)]},
          {"name", question.name},
          {"text", question.text},
          {"limit_ms", question.limit_ms}};
}
Json put(const MarkAnswer& answer) {
  return {{"kind", "mark"}, {"problem", answer.problem}, {"after_ms", answer.after_ms}};
}
Json put(const PortQuestion&) {
  return {{"kind", "port?"}};
}
Json put(const PortAnswer& answer) {
  return {{"kind", "port"}, {"port", answer.port}};
}
Json put(const SmokeQuestion& question) {
  return {
      {"kind", "smoke?"},        {"endpoint", question.endpoint}, {"run_id", question.run_id},
      {"nodes", question.nodes}, {"workers", question.workers},   {"limit_ms", question.limit_ms}};
}
Json put(const SmokeAnswer& answer) {
  return {{"kind", "smoke"}, {"code", answer.code}, {"said", answer.said}};
}
Json put(const DoctorEnd& end) {
  return {{"kind", "end"}, {"code", end.code}, {"summary", end.summary}};
}

constexpr int kMostMilliseconds = 3600 * 1000;

DoctorContent take(const Json& json) {
  const std::string kind = text(json, "kind");
  if (kind == "hello") return take_hello(json);
  if (kind == "clock?") return ClockQuestion{};
  if (kind == "clock") {
    return ClockAnswer{.wall_ns = integer(json, "wall_ns", 0, std::int64_t{1} << 62)};
  }
  if (kind == "names?") return NamesQuestion{.hosts = texts(json, "hosts")};
  if (kind == "names") return take_names(json);
  if (kind == "probe?") return take_probe_question(json);
  if (kind == "probe") return take_probe_answer(json);
  if (kind == "mark?") {
    return MarkQuestion{.action = action_of(text(json, "action")),
                        .name = mark_name(json),
                        .text = text(json, "text"),
                        .limit_ms = whole(json, "limit_ms", 0, kMostMilliseconds)};
  }
  if (kind == "mark") {
    return MarkAnswer{.problem = text(json, "problem"),
                      .after_ms = whole(json, "after_ms", 0, kMostMilliseconds)};
  }
  if (kind == "port?") return PortQuestion{};
  if (kind == "port") return PortAnswer{.port = whole(json, "port", 1, 65535)};
  if (kind == "smoke?") {
    return SmokeQuestion{.endpoint = text(json, "endpoint"),
                         .run_id = text(json, "run_id"),
                         .nodes = whole(json, "nodes", 1, 1 << 20),
                         .workers = whole(json, "workers", 1, 1 << 20),
                         .limit_ms = whole(json, "limit_ms", 0, kMostMilliseconds)};
  }
  if (kind == "smoke") {
    return SmokeAnswer{.code = whole(json, "code", 0, 255), .said = text(json, "said")};
  }
  if (kind == "end") {
    return DoctorEnd{.code = whole(json, "code", 0, 255), .summary = text(json, "summary")};
  }
  refuse("kind");
}

}  // namespace

std::string encode_doctor_message(const DoctorMessage& message) {
  Json json = std::visit([](const auto& content) { return put(content); }, message.content);
  json["number"] = message.number;
  return dump_json(json);
}

DoctorMessage decode_doctor_message(std::string_view text) {
  const auto json = parse_json(text);
  if (!json) throw InvalidArgument("a message of the doctor is not JSON");
  return {.number = static_cast<std::uint64_t>(integer(*json, "number", 0, std::int64_t{1} << 62)),
          .content = take(*json)};
}

}  // namespace lockstep
