#include <algorithm>
#include <array>
#include <csignal>
#include <limits>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launch/messages.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNodes = 100'000;
constexpr int kMaxRank = 10'000'000;

const json& field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw InvalidArgument(concat("message has no field '", name, "'"));
  return *found;
}

std::string text(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_string()) throw InvalidArgument(concat("message field '", name, "' is no string"));
  return value.get<std::string>();
}

bool flag(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_boolean())
    throw InvalidArgument(concat("message field '", name, "' is no boolean"));
  return value.get<bool>();
}

template <typename T>
T number(const json& object, const char* name, std::int64_t low = 0,
         std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
  const json& value = field(object, name);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(high)) ||
      value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    throw InvalidArgument(concat("message field '", name, "' is no integer in its range"));
  }
  return value.get<T>();
}

int count(const json& object, const char* name, int low = 0) {
  return number<int>(object, name, low, kMaxRank);
}

Epoch epoch_of(const json& object) {
  return number<Epoch>(object, "epoch");
}

const json& list(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_array() || value.size() > kMaxNodes) {
    throw InvalidArgument(concat("message field '", name, "' is no list"));
  }
  return value;
}

std::vector<int> ranks(const json& object, const char* name) {
  std::vector<int> all;
  for (const json& rank : list(object, name)) {
    if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() > kMaxRank) {
      throw InvalidArgument(concat("message field '", name, "' holds something that is no rank"));
    }
    all.push_back(rank.get<int>());
  }
  return all;
}

std::chrono::milliseconds limit_of(const json& object) {
  return std::chrono::milliseconds(number<std::int64_t>(object, "limit_ms", 0, 86'400'000));
}

json to_json(const NodeInfo& node) {
  return {{"id", node.id},
          {"host", node.host},
          {"address", node.address},
          {"seen_at", node.seen_at},
          {"node_rank", node.node_rank ? json(*node.node_rank) : json()},
          {"workers", node.workers},
          {"role", node.role},
          {"pid", node.pid}};
}

NodeInfo node_info(const json& object) {
  NodeInfo node{.id = text(object, "id"),
                .host = text(object, "host"),
                .address = text(object, "address"),
                .seen_at = text(object, "seen_at"),
                .node_rank = std::nullopt,
                .workers = count(object, "workers", 1),
                .role = text(object, "role"),
                .pid = number<std::int64_t>(object, "pid")};
  if (!field(object, "node_rank").is_null()) node.node_rank = count(object, "node_rank");
  if (node.id.empty()) throw InvalidArgument("message field 'id' is empty");
  return node;
}

json to_json(const JobTerms& terms) {
  return {{"run_id", terms.run_id},
          {"min_nodes", terms.min_nodes},
          {"max_nodes", terms.max_nodes},
          {"max_restarts", terms.max_restarts},
          {"max_replacements", terms.max_replacements},
          {"min_world", terms.min_world},
          {"local_store", terms.local_store},
          {"beat_interval_ns", terms.beat_interval.count()},
          {"beat_limit_ns", terms.beat_limit.count()}};
}

JobTerms job_terms(const json& object) {
  return {.run_id = text(object, "run_id"),
          .min_nodes = count(object, "min_nodes", 1),
          .max_nodes = count(object, "max_nodes", 1),
          .max_restarts = count(object, "max_restarts"),
          .max_replacements = count(object, "max_replacements"),
          .min_world = count(object, "min_world"),
          .local_store = flag(object, "local_store"),
          .beat_interval = Time(number<std::int64_t>(object, "beat_interval_ns")),
          .beat_limit = Time(number<std::int64_t>(object, "beat_limit_ns"))};
}

json to_json(const WorkerFailed& failed) {
  return {{"epoch", failed.epoch},     {"rank", failed.rank},        {"code", failed.code},
          {"signal", failed.signal},   {"started", failed.started},  {"age_ns", failed.age.count()},
          {"details", failed.details}, {"progress", failed.progress}};
}

WorkerFailed worker_failed(const json& object) {
  return {.epoch = epoch_of(object),
          .rank = count(object, "rank"),
          .code = number<int>(object, "code", 1, 255),
          .signal = number<int>(object, "signal", 0, 64),
          .started = flag(object, "started"),
          .age = Time(number<std::int64_t>(object, "age_ns")),
          .details = text(object, "details"),
          .progress = text(object, "progress")};
}

json to_json(const std::vector<WorkerFailed>& failures) {
  json all = json::array();
  for (const auto& failed : failures) all.push_back(to_json(failed));
  return all;
}

std::vector<WorkerFailed> worker_failures(const json& object) {
  std::vector<WorkerFailed> failures;
  for (const json& failed : list(object, "failures")) failures.push_back(worker_failed(failed));
  return failures;
}

json to_json(const RankRecovers& recovers) {
  return {{"epoch", recovers.epoch},
          {"rank", recovers.rank},
          {"step", recovers.step},
          {"able", recovers.able}};
}

RankRecovers rank_recovers(const json& object) {
  return {.epoch = epoch_of(object),
          .rank = count(object, "rank"),
          .step = number<std::int64_t>(object, "step"),
          .able = flag(object, "able")};
}

json to_json(const std::vector<RankRecovers>& recovers) {
  json all = json::array();
  for (const auto& each : recovers) all.push_back(to_json(each));
  return all;
}

std::vector<RankRecovers> ranks_that_recover(const json& object) {
  std::vector<RankRecovers> recovers;
  for (const json& each : list(object, "recovers")) recovers.push_back(rank_recovers(each));
  return recovers;
}

json to_json(const Membership& membership) {
  json nodes = json::array();
  for (const NodePlace& node : membership.nodes) {
    nodes.push_back({{"host", node.host},
                     {"address", node.address},
                     {"seen_at", node.seen_at},
                     {"workers", node.workers},
                     {"first_rank", node.first_rank}});
  }
  return {{"epoch", membership.epoch},
          {"restart_count", membership.restart_count},
          {"group_rank", membership.group_rank},
          {"places", membership.places},
          {"first_role_rank", membership.first_role_rank},
          {"role_world_size", membership.role_world_size},
          {"left_out", membership.left_out},
          {"nodes", std::move(nodes)}};
}

Membership membership_of(const json& object) {
  Membership membership{.epoch = epoch_of(object),
                        .restart_count = count(object, "restart_count"),
                        .group_rank = count(object, "group_rank"),
                        .places = count(object, "places", 1),
                        .first_role_rank = count(object, "first_role_rank"),
                        .role_world_size = count(object, "role_world_size"),
                        .nodes = {},
                        .left_out = ranks(object, "left_out")};
  for (const json& node : list(object, "nodes")) {
    membership.nodes.push_back({.host = text(node, "host"),
                                .address = text(node, "address"),
                                .seen_at = text(node, "seen_at"),
                                .workers = count(node, "workers", 1),
                                .first_rank = count(node, "first_rank")});
  }
  if (static_cast<std::size_t>(membership.group_rank) >= membership.nodes.size()) {
    throw InvalidArgument("message field 'group_rank' is outside the list of nodes");
  }
  const auto is_unordered = [](int one, int next) { return one >= next; };
  if (std::ranges::adjacent_find(membership.left_out, is_unordered) != membership.left_out.end()) {
    throw InvalidArgument("message field 'left_out' is not in order");
  }
  return membership;
}

json body(const Join& join) {
  return {{"node", to_json(join.node)},
          {"terms", to_json(join.terms)},
          {"hosts_coordinator", join.hosts_coordinator},
          {"phase", static_cast<int>(join.phase)},
          {"epoch", join.epoch},
          {"restart_count", join.restart_count},
          {"ready", join.ready},
          {"store_port", join.store_port},
          {"failures", to_json(join.failures)},
          {"recovers", to_json(join.recovers)}};
}
json body(const Ready& ready) {
  return {{"epoch", ready.epoch}, {"store_port", ready.store_port}};
}
json body(const WorkerFailed& failed) {
  return to_json(failed);
}
json body(const WorkersSucceeded& succeeded) {
  return {{"epoch", succeeded.epoch}};
}
json body(const Stopped& stopped) {
  return {{"epoch", stopped.epoch},
          {"stopped_ranks", stopped.stopped_ranks},
          {"resume", stopped.resume}};
}
json body(const Leave& leave) {
  return {{"signal", leave.signal}, {"reason", leave.reason}};
}
json body(const Refused& refused) {
  return {{"reason", refused.reason}};
}
json body(const Status& status) {
  return {{"text", status.text}};
}
json body(const Prepare& prepare) {
  json object = to_json(prepare.membership);
  object["carries_over"] = prepare.carries_over;
  object["replaced"] = prepare.replaced;
  object["reason"] = prepare.reason;
  return object;
}
json body(const RankRecovers& recovers) {
  return to_json(recovers);
}
json body(const CannotReform& cannot) {
  return {{"epoch", cannot.epoch}, {"reason", cannot.reason}};
}
json body(const RanksRejected& rejected) {
  return {{"epoch", rejected.epoch}, {"ranks", rejected.ranks}, {"reason", rejected.reason}};
}
json body(const Recovered& recovered) {
  return {{"epoch", recovered.epoch},
          {"step", recovered.step},
          {"since_loss_ns", recovered.since_loss.count()}};
}
json body(const PassSignal& passed) {
  return {{"signal", passed.signal},
          {"time_left_ns", passed.time_left ? json(passed.time_left->count()) : json(nullptr)}};
}
json body(const Start& start) {
  return {{"epoch", start.epoch},
          {"master_addr", start.master_addr},
          {"master_port", start.master_port}};
}
json body(const Stop& stop) {
  return {{"epoch", stop.epoch}, {"signal", stop.signal}, {"reason", stop.reason}};
}
json body(const Finish& finish) {
  return {{"code", finish.code},
          {"reason", finish.reason},
          {"failures", to_json(finish.failures)},
          {"stopped_ranks", finish.stopped_ranks}};
}
json body(const Beat&) {
  return json::object();
}
json body(const AskStacks& ask) {
  return {{"id", ask.id}, {"limit_ms", ask.limit.count()}};
}
json body(const FindStacks& find) {
  return {{"id", find.id}, {"limit_ms", find.limit.count()}};
}
json body(const FoundStacks& found) {
  return {{"id", found.id}, {"stacks", found.stacks}};
}
json body(const StacksDone& done) {
  return {{"id", done.id}, {"missing", done.missing}};
}

Message parse(const json& object, const Join*) {
  return Join{.node = node_info(field(object, "node")),
              .terms = job_terms(field(object, "terms")),
              .hosts_coordinator = flag(object, "hosts_coordinator"),
              .phase = static_cast<NodePhase>(
                  number<int>(object, "phase", 0, static_cast<int>(NodePhase::reforming))),
              .epoch = epoch_of(object),
              .restart_count = count(object, "restart_count"),
              .ready = flag(object, "ready"),
              .store_port = number<int>(object, "store_port", 0, 65535),
              .failures = worker_failures(object),
              .recovers = ranks_that_recover(object)};
}
Message parse(const json& object, const Ready*) {
  return Ready{epoch_of(object), number<int>(object, "store_port", 0, 65535)};
}
Message parse(const json& object, const WorkerFailed*) {
  return worker_failed(object);
}
Message parse(const json& object, const WorkersSucceeded*) {
  return WorkersSucceeded{epoch_of(object)};
}
Message parse(const json& object, const Stopped*) {
  return Stopped{epoch_of(object), ranks(object, "stopped_ranks"), flag(object, "resume")};
}
Message parse(const json& object, const Leave*) {
  return Leave{number<int>(object, "signal", 0, 64), text(object, "reason")};
}
Message parse(const json& object, const Refused*) {
  return Refused{text(object, "reason")};
}
Message parse(const json& object, const Status*) {
  return Status{text(object, "text")};
}
Message parse(const json& object, const Prepare*) {
  return Prepare{membership_of(object), flag(object, "carries_over"), ranks(object, "replaced"),
                 text(object, "reason")};
}
Message parse(const json& object, const RankRecovers*) {
  return rank_recovers(object);
}
Message parse(const json& object, const CannotReform*) {
  return CannotReform{epoch_of(object), text(object, "reason")};
}
Message parse(const json& object, const RanksRejected*) {
  return RanksRejected{epoch_of(object), ranks(object, "ranks"), text(object, "reason")};
}
Message parse(const json& object, const Recovered*) {
  return Recovered{epoch_of(object), number<std::int64_t>(object, "step"),
                   Time(number<std::int64_t>(object, "since_loss_ns"))};
}
Message parse(const json& object, const Start*) {
  return Start{epoch_of(object), text(object, "master_addr"),
               number<int>(object, "master_port", 0, 65535)};
}
Message parse(const json& object, const Stop*) {
  return Stop{epoch_of(object), number<int>(object, "signal", 1, 64), text(object, "reason")};
}
Message parse(const json& object, const Finish*) {
  return Finish{.code = number<int>(object, "code", 0, 255),
                .reason = text(object, "reason"),
                .failures = worker_failures(object),
                .stopped_ranks = ranks(object, "stopped_ranks")};
}
Message parse(const json&, const Beat*) {
  return Beat{};
}
Message parse(const json& object, const AskStacks*) {
  return AskStacks{number<std::uint64_t>(object, "id"), limit_of(object)};
}
Message parse(const json& object, const FindStacks*) {
  return FindStacks{number<std::uint64_t>(object, "id"), limit_of(object)};
}
Message parse(const json& object, const FoundStacks*) {
  return FoundStacks{number<std::uint64_t>(object, "id"), text(object, "stacks")};
}
Message parse(const json& object, const StacksDone*) {
  StacksDone done{number<std::uint64_t>(object, "id"), {}};
  for (const json& host : list(object, "missing")) {
    if (!host.is_string()) throw InvalidArgument("message field 'missing' holds no host");
    done.missing.push_back(host.get<std::string>());
  }
  return done;
}

Message parse(const json& object, const PassSignal*) {
  PassSignal passed{.signal = number<int>(object, "signal", 0, 64)};
  if (passed.signal != 0 && passed.signal != SIGUSR1 && passed.signal != SIGUSR2) {
    throw InvalidArgument("message field 'signal' is none that is passed on");
  }
  if (!field(object, "time_left_ns").is_null()) {
    passed.time_left = Time(number<std::int64_t>(object, "time_left_ns"));
  }
  return passed;
}

// In the order of Message's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kNames{
    "join",          "ready",      "failed",      "succeeded",    "stopped",     "leave",
    "refused",       "status",     "prepare",     "start",        "stop",        "finish",
    "beat",          "ask_stacks", "find_stacks", "found_stacks", "stacks_done", "recovers",
    "cannot_reform", "rejected",   "recovered",   "pass_signal"};

template <std::size_t Index = 0>
Message parse_kind(std::size_t kind, const json& object) {
  if constexpr (Index < std::variant_size_v<Message>) {
    using Kind = std::variant_alternative_t<Index, Message>;
    if (kind == Index) return parse(object, static_cast<const Kind*>(nullptr));
    return parse_kind<Index + 1>(kind, object);
  } else {
    throw InvalidArgument("message of an unknown kind");
  }
}

}  // namespace

std::string encode(const Message& message) {
  json object = std::visit([](const auto& kind) { return body(kind); }, message);
  object["kind"] = kNames[message.index()];
  // Host names and messages of programs may hold any bytes.
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Message decode(std::string_view encoded) {
  const json object = json::parse(encoded, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw InvalidArgument("message is no JSON object");
  const std::string kind = text(object, "kind");
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == kind) return parse_kind(i, object);
  }
  throw InvalidArgument(concat("message of an unknown kind '", kind.substr(0, 40), "'"));
}

}  // namespace lockstep
