#include "launch/coordinator_record.h"

#include <algorithm>
#include <array>
#include <utility>

#include "launch/json_fields.h"
#include "launch/version.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, 4> kPhases{"preparing", "running", "stopping", "finished"};
constexpr std::size_t kMaxRecord = 1 << 20;

// Lists of pairs: keys of JSON objects are strings.
template <typename Value>
Json pairs(const std::map<int, Value>& map) {
  Json list = Json::array();
  for (const auto& [place, value] : map) list.push_back({place, value});
  return list;
}

template <typename Value>
std::map<int, Value> map_of(const Json& list) {
  std::map<int, Value> map;
  for (const Json& pair : list) map[pair.at(0).get<int>()] = pair.at(1).get<Value>();
  return map;
}

Json to_json(const CoordinatorRecord::End& end) {
  return {{"code", end.code}, {"reason", end.reason}, {"of_worker", end.of_worker}};
}

CoordinatorRecord::End end_of(const Json& object) {
  return {.code = object.at("code").get<int>(),
          .reason = object.at("reason").get<std::string>(),
          .of_worker = object.at("of_worker").get<bool>()};
}

// The messages have a codec already: a Join holds a node, a Start and a Finish are themselves.
Json to_json(const NodeInfo& node) {
  Join join;
  join.node = node;
  return Json::parse(encode(join)).at("node");
}

template <typename Kind>
Kind message_of(const Json& object) {
  return std::get<Kind>(decode(object.dump()));
}

std::vector<NodeInfo> seats_of(const Json& list) {
  std::vector<NodeInfo> seats;
  Json join = Json::parse(encode(Join{}));
  for (const Json& node : list) {
    join["node"] = node;
    join["node"]["version"] = lockstep_version();  // of another one, none would be read
    seats.push_back(message_of<Join>(join).node);
    seats.back().version = node.at("version").get<std::string>();
  }
  return seats;
}

CoordinatorRecord::Phase phase_of(const std::string& name) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (name == kPhases[i]) return static_cast<CoordinatorRecord::Phase>(i);
  }
  throw InvalidArgument(concat("a coordinator's record has the phase '", name, "'"));
}

Time time_of(const Json& nanoseconds) {
  return Time(nanoseconds.get<std::int64_t>());
}

// What an epoch of these seats cannot have been would lead a coordinator astray.
bool is_sound(const CoordinatorRecord& record) {
  if (record.epoch == 0 || record.seats.empty()) return false;
  if (record.participants.size() != record.seats.size()) return false;
  std::int64_t places = 0;
  for (const NodeInfo& seat : record.seats) places += seat.workers;
  const auto is_place = [&](int place) { return place >= 0 && place < places; };
  const bool are_places = std::ranges::all_of(record.left_out, is_place) &&
                          std::ranges::all_of(record.replaced, is_place);
  const bool has_start = record.phase != CoordinatorRecord::Phase::running || record.start;
  const bool has_finish = record.phase != CoordinatorRecord::Phase::finished || record.finish;
  const bool has_times =
      record.written_at >= Time(0) && record.time_left.value_or(Time(0)) >= Time(0);
  return are_places && has_times && has_start && has_finish &&
         std::cmp_less(record.left_out.size(), places) && record.restarts >= 0 &&
         record.replacements >= 0;
}

}  // namespace

bool CoordinatorRecord::operator==(const CoordinatorRecord& other) const {
  return to_json(*this) == to_json(other);
}

std::string to_json(const CoordinatorRecord& record) {
  Json seats = Json::array();
  for (const NodeInfo& seat : record.seats) seats.push_back(to_json(seat));
  const Json object = {{"run_id", record.run_id},
                       {"host_id", record.host_id},
                       {"epoch", record.epoch},
                       {"phase", kPhases[static_cast<std::size_t>(record.phase)]},
                       {"restarts", record.restarts},
                       {"replacements", record.replacements},
                       {"carries_over", record.carries_over},
                       {"settled", record.settled},
                       {"seats", seats},
                       {"participants", record.participants},
                       {"replaced", record.replaced},
                       {"left_out", record.left_out},
                       {"absences", pairs(record.absences)},
                       {"died_at", pairs(record.died_at)},
                       {"start", record.start ? Json::parse(encode(*record.start)) : Json()},
                       {"cause", to_json(record.cause)},
                       {"ending", record.ending ? to_json(*record.ending) : Json()},
                       {"finish", record.finish ? Json::parse(encode(*record.finish)) : Json()},
                       {"ns_left", record.time_left ? Json(record.time_left->count()) : Json()},
                       {"written_at_ns", record.written_at.count()}};
  return dump_json(object);
}

std::optional<CoordinatorRecord> coordinator_record_from_json(std::string_view text) {
  const auto object = parse_json(text);
  if (!object || !object->is_object() || text.size() > 64 * kMaxRecord) return std::nullopt;
  try {
    const auto get = [&]<typename Kind>(const char* name, Kind*) {
      return object->at(name).get<Kind>();
    };
    CoordinatorRecord record;
    record.run_id = get("run_id", &record.run_id);
    record.host_id = get("host_id", &record.host_id);
    record.epoch = get("epoch", &record.epoch);
    record.phase = phase_of(object->at("phase").get<std::string>());
    record.restarts = get("restarts", &record.restarts);
    record.replacements = get("replacements", &record.replacements);
    record.carries_over = get("carries_over", &record.carries_over);
    record.settled = get("settled", &record.settled);
    record.seats = seats_of(object->at("seats"));
    record.participants = get("participants", &record.participants);
    record.replaced = get("replaced", &record.replaced);
    record.left_out = get("left_out", &record.left_out);
    record.absences = map_of<int>(object->at("absences"));
    record.died_at = map_of<std::int64_t>(object->at("died_at"));
    if (!object->at("start").is_null()) record.start = message_of<Start>(object->at("start"));
    record.cause = end_of(object->at("cause"));
    if (!object->at("ending").is_null()) record.ending = end_of(object->at("ending"));
    if (!object->at("finish").is_null()) record.finish = message_of<Finish>(object->at("finish"));
    if (!object->at("ns_left").is_null()) record.time_left = time_of(object->at("ns_left"));
    record.written_at = time_of(object->at("written_at_ns"));
    if (is_sound(record)) return record;
  } catch (const Json::exception&) {
  } catch (const InvalidArgument&) {
  } catch (const std::bad_variant_access&) {
  }
  return std::nullopt;
}

}  // namespace lockstep
