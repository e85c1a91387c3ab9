#include "control/worker_messages.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
// Longer than any job, short enough that a deadline in nanoseconds does not overflow.
constexpr std::int64_t kMaxMilliseconds = std::int64_t{1} << 40;

// The fields of one message; each getter throws InvalidArgument with the field's name.
class Fields {
 public:
  explicit Fields(std::string_view text)
      : object_(Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false)) {
    if (!object_.is_object()) throw InvalidArgument("a message is not a JSON object");
  }

  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) const {
    return checked_integer(get(name), name, least, most);
  }
  int number(const char* name, int least = 0) const {
    return static_cast<int>(integer(name, least, kMaxInt));
  }
  std::uint64_t epoch() const { return static_cast<std::uint64_t>(integer("epoch", 0, kMaxInt64)); }
  milliseconds time(const char* name) const {
    return milliseconds(integer(name, 0, kMaxMilliseconds));
  }
  std::string text(const char* name) const {
    const Json& value = get(name);
    if (!value.is_string()) throw InvalidArgument(concat("the field '", name, "' is no text"));
    return value.get<std::string>();
  }
  bool flag(const char* name) const {
    const Json& value = get(name);
    if (!value.is_boolean()) {
      throw InvalidArgument(concat("the field '", name, "' is neither true nor false"));
    }
    return value.get<bool>();
  }
  // Of a field that not every version has.
  bool flag_if_said(const char* name) const { return object_.contains(name) && flag(name); }
  std::uint64_t epoch_if_said() const { return object_.contains("epoch") ? epoch() : 0; }
  std::int64_t count_if_said(const char* name, std::int64_t most = kMaxInt64) const {
    return object_.contains(name) ? integer(name, 0, most) : 0;
  }
  std::string text_if_said(const char* name) const {
    return object_.contains(name) ? text(name) : std::string();
  }
  std::map<std::string, std::string, std::less<>> texts(const char* name) const {
    const Json& value = get(name);
    if (!value.is_object()) throw InvalidArgument(concat("the field '", name, "' is no object"));
    std::map<std::string, std::string, std::less<>> result;
    for (const auto& [key, each] : value.items()) {
      if (!each.is_string()) {
        throw InvalidArgument(concat("the field '", name, "' holds something that is no text"));
      }
      result.emplace(key, each.get<std::string>());
    }
    return result;
  }
  std::vector<int> numbers(const char* name) const {
    const Json& value = get(name);
    if (!value.is_array()) throw InvalidArgument(concat("the field '", name, "' is no list"));
    std::vector<int> result;
    for (const Json& each : value) {
      result.push_back(static_cast<int>(checked_integer(each, name, 0, kMaxInt)));
    }
    return result;
  }

 private:
  const Json& get(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) throw InvalidArgument(concat("the field '", name, "' is missing"));
    return *found;
  }
  static std::int64_t checked_integer(const Json& value, const char* name, std::int64_t least,
                                      std::int64_t most) {
    // What is unsigned and does not fit would come out negative.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxInt64));
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      throw InvalidArgument(
          concat("the field '", name, "' is no integer from ", least, " to ", most));
    }
    return value.get<std::int64_t>();
  }

  Json object_;
};

Json fields_of(const WorkerHello& hello) {
  return {{"kind", "hello"},
          {"oldest_protocol", hello.oldest_protocol},
          {"newest_protocol", hello.newest_protocol},
          {"pid", hello.pid},
          {"rank", hello.rank},
          {"slot", hello.slot},
          {"epoch", hello.epoch},
          {"program", hello.program},
          {"spare", hello.spare}};
}

Json fields_of(const WorkerHeartbeat& beat) {
  return {{"kind", "heartbeat"},
          {"step", beat.step},
          {"phase", beat.phase},
          {"age_ms", beat.age.count()},
          {"waits_for", beat.waits_for},
          {"alone_ms", beat.alone.count()},
          {"longest_alone_ms", beat.longest_alone.count()},
          {"visits", beat.visits},
          {"steps", beat.work.steps},
          {"data_us", beat.work.data.count()},
          {"compute_us", beat.work.compute.count()},
          {"waiting_us", beat.work.waiting.count()}};
}

Json fields_of(const WorkerLostPeers& lost) {
  return {{"kind", "lost_peers"}, {"ranks", lost.ranks}, {"operation", lost.operation}};
}

Json fields_of(const WorkerLeaving&) {
  return {{"kind", "leaving"}};
}

Json fields_of(const WorkerRecovers& recovers) {
  return {{"kind", "recovers"},
          {"epoch", recovers.epoch},
          {"step", recovers.step},
          {"able", recovers.able}};
}

Json fields_of(const WorkerRejected& rejected) {
  return {{"kind", "rejected"},
          {"ranks", rejected.ranks},
          {"reason", rejected.reason},
          {"epoch", rejected.epoch}};
}

Json fields_of(const WorkerWelcome& welcome) {
  return {{"kind", "welcome"},
          {"protocol", welcome.protocol},
          {"epoch", welcome.epoch},
          {"heartbeat_interval_ms", welcome.heartbeat_interval.count()},
          {"replaces", welcome.replaces}};
}

Json fields_of(const WorkerRefused& refused) {
  return {{"kind", "refused"}, {"reason", refused.reason}};
}

Json fields_of(const StopWorker& stop) {
  return {{"kind", "stop"}, {"reason", stop.reason}, {"remaining_ms", stop.remaining.count()}};
}

Json fields_of(const RevokeWorld& revoke) {
  return {{"kind", "revoke_world"},
          {"epoch", revoke.epoch},
          {"reason", revoke.reason},
          {"lost_ranks", revoke.lost_ranks}};
}

Json fields_of(const NewWorld& world) {
  return {{"kind", "new_world"},
          {"epoch", world.epoch},
          {"rank", world.rank},
          {"world_size", world.world_size},
          {"local_rank", world.local_rank},
          {"local_world_size", world.local_world_size},
          {"node_rank", world.node_rank},
          {"restart_count", world.restart_count},
          {"master_addr", world.master_addr},
          {"master_port", world.master_port},
          {"replaced_slots", world.replaced_slots}};
}

Json fields_of(const TakePlace& take) {
  return {{"kind", "take_place"}, {"variables", take.variables}};
}

Json fields_of(const PingWorker&) {
  return {{"kind", "ping"}};
}

template <typename Variant>
std::string encode_any(const Variant& message) {
  const Json fields = std::visit([](const auto& each) { return fields_of(each); }, message);
  return fields.dump(-1, ' ', false, Json::error_handler_t::replace);
}

WorkerHeartbeat heartbeat_of(const Fields& fields) {
  using std::chrono::microseconds;
  return {.step = fields.integer("step", -kMaxInt64, kMaxInt64),
          .phase = fields.text("phase"),
          .age = fields.time("age_ms"),
          .waits_for = fields.text_if_said("waits_for"),
          .alone = milliseconds(fields.count_if_said("alone_ms", kMaxMilliseconds)),
          .longest_alone = milliseconds(fields.count_if_said("longest_alone_ms", kMaxMilliseconds)),
          .visits = fields.count_if_said("visits"),
          .work = {.steps = fields.count_if_said("steps"),
                   .data = microseconds(fields.count_if_said("data_us")),
                   .compute = microseconds(fields.count_if_said("compute_us")),
                   .waiting = microseconds(fields.count_if_said("waiting_us"))}};
}

NewWorld new_world_of(const Fields& fields) {
  return {.epoch = fields.epoch(),
          .rank = fields.number("rank"),
          .world_size = fields.number("world_size", 1),
          .local_rank = fields.number("local_rank"),
          .local_world_size = fields.number("local_world_size", 1),
          .node_rank = fields.number("node_rank"),
          .restart_count = fields.number("restart_count"),
          .master_addr = fields.text("master_addr"),
          .master_port = static_cast<int>(fields.integer("master_port", 0, 65535)),
          .replaced_slots = fields.numbers("replaced_slots")};
}

}  // namespace

std::string encode_from_worker(const MessageFromWorker& message) {
  return encode_any(message);
}

std::string encode_to_worker(const MessageToWorker& message) {
  return encode_any(message);
}

MessageFromWorker decode_from_worker(std::string_view text) {
  const Fields fields(text);
  const std::string kind = fields.text("kind");
  if (kind == "hello") {
    return WorkerHello{.oldest_protocol = fields.number("oldest_protocol"),
                       .newest_protocol = fields.number("newest_protocol"),
                       .pid = fields.integer("pid", 0, kMaxInt64),
                       .rank = fields.number("rank"),
                       .slot = fields.number("slot"),
                       .epoch = fields.epoch(),
                       .program = fields.text("program"),
                       .spare = fields.flag_if_said("spare")};
  }
  if (kind == "heartbeat") return heartbeat_of(fields);
  if (kind == "lost_peers") {
    return WorkerLostPeers{.ranks = fields.numbers("ranks"), .operation = fields.text("operation")};
  }
  if (kind == "leaving") return WorkerLeaving{};
  if (kind == "recovers") {
    return WorkerRecovers{.epoch = fields.epoch(),
                          .step = fields.integer("step", 0, kMaxInt64),
                          .able = fields.flag("able")};
  }
  if (kind == "rejected") {
    return WorkerRejected{.ranks = fields.numbers("ranks"),
                          .reason = fields.text("reason"),
                          .epoch = fields.epoch_if_said()};
  }
  throw InvalidArgument("a worker's message is of a kind that is not known");
}

MessageToWorker decode_to_worker(std::string_view text) {
  const Fields fields(text);
  const std::string kind = fields.text("kind");
  if (kind == "welcome") {
    return WorkerWelcome{.protocol = fields.number("protocol"),
                         .epoch = fields.epoch(),
                         .heartbeat_interval = fields.time("heartbeat_interval_ms"),
                         .replaces = fields.flag_if_said("replaces")};
  }
  if (kind == "refused") return WorkerRefused{.reason = fields.text("reason")};
  if (kind == "stop") {
    return StopWorker{.reason = fields.text("reason"), .remaining = fields.time("remaining_ms")};
  }
  if (kind == "revoke_world") {
    return RevokeWorld{.epoch = fields.epoch(),
                       .reason = fields.text("reason"),
                       .lost_ranks = fields.numbers("lost_ranks")};
  }
  if (kind == "new_world") return new_world_of(fields);
  if (kind == "take_place") return TakePlace{.variables = fields.texts("variables")};
  if (kind == "ping") return PingWorker{};
  throw InvalidArgument("an agent's message is of a kind that is not known");
}

}  // namespace lockstep
