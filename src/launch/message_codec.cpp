#include <array>
#include <csignal>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launch/message_fields.h"
#include "launch/message_parts.h"
#include "launch/messages.h"
#include "launch/version.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;
using namespace message_fields;
using namespace message_parts;

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
          {"recovers", to_json(join.recovers)},
          {"wall_clock_ns", join.wall_clock.count()}};
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
  object["replaced"] = to_runs(prepare.replaced);
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
          {"more_failed", to_runs(finish.more_failed)},
          {"stopped_ranks", to_runs(finish.stopped_ranks)}};
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
json body(const AskAddresses& ask) {
  return {{"round", ask.round}};
}
json body(const Addresses& answer) {
  return {{"round", answer.round},
          {"addresses", to_json(answer.addresses)},
          {"named_by", answer.named_by}};
}
json body(const ProbeNodes& probe) {
  return {{"round", probe.round}, {"targets", to_json(probe.targets)}};
}
json body(const Probed& probed) {
  return {{"round", probed.round}, {"failures", to_json(probed.failures)}};
}

// Before anything else is read: the rest may have another form there.
void check_version(const json& node) {
  const std::string theirs =
      node.is_object() && node.contains("version") ? text(node, "version") : "older than 0.1.0";
  if (theirs == lockstep_version()) return;
  const std::string host =
      node.is_object() && node.contains("host") ? text(node, "host") : "a node";
  throw InvalidArgument(unequal_versions(host, theirs));
}

Message parse(const json& object, const Join*) {
  check_version(field(object, "node"));
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
              .recovers = ranks_that_recover(object),
              .wall_clock = Time(number<std::int64_t>(object, "wall_clock_ns"))};
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
  return Prepare{membership_of(object), flag(object, "carries_over"), runs(object, "replaced"),
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
                .more_failed = runs(object, "more_failed"),
                .stopped_ranks = runs(object, "stopped_ranks")};
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
Message parse(const json& object, const AskAddresses*) {
  return AskAddresses{number<std::uint64_t>(object, "round")};
}
Message parse(const json& object, const Addresses*) {
  return Addresses{number<std::uint64_t>(object, "round"), node_addresses(object),
                   text(object, "named_by")};
}
Message parse(const json& object, const ProbeNodes*) {
  return ProbeNodes{number<std::uint64_t>(object, "round"), probe_targets(object)};
}
Message parse(const json& object, const Probed*) {
  return Probed{number<std::uint64_t>(object, "round"), probe_failures(object)};
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
    "join",          "ready",      "failed",      "succeeded",    "stopped",       "leave",
    "refused",       "status",     "prepare",     "start",        "stop",          "finish",
    "beat",          "ask_stacks", "find_stacks", "found_stacks", "stacks_done",   "recovers",
    "cannot_reform", "rejected",   "recovered",   "pass_signal",  "ask_addresses", "addresses",
    "probe_nodes",   "probed"};

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
