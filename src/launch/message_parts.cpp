#include "launch/message_parts.h"

#include <algorithm>
#include <utility>

#include "launch/message_fields.h"

namespace lockstep::message_parts {

using namespace message_fields;

namespace {

// Far more than any node has to say; a survey's messages do not grow with the job.
constexpr std::size_t kMostProbes = 4096;

const json& short_list(const json& object, const char* name) {
  const json& value = list(object, name);
  if (value.size() > kMostProbes) {
    throw InvalidArgument(concat("message field '", name, "' is too long"));
  }
  return value;
}

json to_json(const ProgramIdentity& program) {
  return {{"name", program.name}, {"digest", program.digest}, {"arguments", program.arguments}};
}

ProgramIdentity program_identity(const json& object) {
  return {.name = text(object, "name"),
          .digest = text(object, "digest"),
          .arguments = text(object, "arguments")};
}

json to_json(const NodePlace& node) {
  return {{"host", node.host},
          {"address", node.address},
          {"seen_at", node.seen_at},
          {"workers", node.workers},
          {"first_rank", node.first_rank}};
}

NodePlace node_place(const json& node) {
  return {.host = text(node, "host"),
          .address = text(node, "address"),
          .seen_at = text(node, "seen_at"),
          .workers = count(node, "workers", 1),
          .first_rank = count(node, "first_rank")};
}

}  // namespace

json to_json(const NodeInfo& node) {
  return {{"id", node.id},
          {"host", node.host},
          {"address", node.address},
          {"seen_at", node.seen_at},
          {"node_rank", node.node_rank ? json(*node.node_rank) : json()},
          {"workers", node.workers},
          {"role", node.role},
          {"pid", node.pid},
          {"version", node.version},
          {"program", to_json(node.program)}};
}

NodeInfo node_info(const json& object) {
  NodeInfo node{.id = text(object, "id"),
                .host = text(object, "host"),
                .address = text(object, "address"),
                .seen_at = text(object, "seen_at"),
                .node_rank = std::nullopt,
                .workers = count(object, "workers", 1),
                .role = text(object, "role"),
                .pid = number<std::int64_t>(object, "pid"),
                .version = text(object, "version"),
                .program = program_identity(field(object, "program"))};
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
  for (const NodePlace& node : membership.nodes) nodes.push_back(to_json(node));
  return {{"epoch", membership.epoch},
          {"restart_count", membership.restart_count},
          {"group_rank", membership.group_rank},
          {"group_world_size", membership.group_world_size},
          {"places", membership.places},
          {"first_role_rank", membership.first_role_rank},
          {"role_world_size", membership.role_world_size},
          {"left_out", to_runs(membership.left_out)},
          {"self", to_json(membership.self)},
          {"nodes", std::move(nodes)}};
}

Membership membership_of(const json& object) {
  Membership membership{.epoch = epoch_of(object),
                        .restart_count = count(object, "restart_count"),
                        .group_rank = count(object, "group_rank"),
                        .group_world_size = count(object, "group_world_size", 1),
                        .places = count(object, "places", 1),
                        .first_role_rank = count(object, "first_role_rank"),
                        .role_world_size = count(object, "role_world_size"),
                        .self = node_place(field(object, "self")),
                        .left_out = runs(object, "left_out")};
  for (const json& node : list(object, "nodes")) membership.nodes.push_back(node_place(node));
  if (membership.group_rank >= membership.group_world_size) {
    throw InvalidArgument("message field 'group_rank' is not below the number of nodes");
  }
  if (!membership.nodes.empty() &&
      std::cmp_not_equal(membership.nodes.size(), membership.group_world_size)) {
    throw InvalidArgument("message field 'nodes' lists other than all nodes");
  }
  const auto is_unordered = [](int one, int next) { return one >= next; };
  if (std::ranges::adjacent_find(membership.left_out, is_unordered) != membership.left_out.end()) {
    throw InvalidArgument("message field 'left_out' is not in order");
  }
  return membership;
}

json to_json(const std::vector<NodeAddress>& addresses) {
  json all = json::array();
  for (const NodeAddress& each : addresses) {
    all.push_back({{"address", each.address},
                   {"prefix_length", each.prefix_length},
                   {"interface", each.interface},
                   {"speed", each.speed},
                   {"port", each.port},
                   {"allowed", each.allowed}});
  }
  return all;
}

std::vector<NodeAddress> node_addresses(const json& object) {
  std::vector<NodeAddress> all;
  for (const json& each : short_list(object, "addresses")) {
    all.push_back({.address = text(each, "address"),
                   .prefix_length = number<int>(each, "prefix_length", 0, 128),
                   .interface = text(each, "interface"),
                   .speed = number<int>(each, "speed", 0, std::numeric_limits<int>::max()),
                   .port = number<int>(each, "port", 0, 65535),
                   .allowed = flag(each, "allowed")});
  }
  return all;
}

json to_json(const std::vector<ProbeTarget>& targets) {
  json all = json::array();
  for (const ProbeTarget& each : targets) {
    all.push_back({{"node", each.node},
                   {"address", each.address},
                   {"id", each.id},
                   {"at", each.at},
                   {"port", each.port}});
  }
  return all;
}

std::vector<ProbeTarget> probe_targets(const json& object) {
  std::vector<ProbeTarget> all;
  for (const json& each : short_list(object, "targets")) {
    all.push_back({.node = count(each, "node"),
                   .address = count(each, "address"),
                   .id = text(each, "id"),
                   .at = text(each, "at"),
                   .port = number<int>(each, "port", 0, 65535)});
  }
  return all;
}

json to_json(const std::vector<ProbeFailure>& failures) {
  json all = json::array();
  for (const ProbeFailure& each : failures) {
    all.push_back({{"node", each.node}, {"address", each.address}, {"reason", each.reason}});
  }
  return all;
}

std::vector<ProbeFailure> probe_failures(const json& object) {
  std::vector<ProbeFailure> all;
  for (const json& each : short_list(object, "failures")) {
    all.push_back({.node = count(each, "node"),
                   .address = count(each, "address"),
                   .reason = text(each, "reason")});
  }
  return all;
}

}  // namespace lockstep::message_parts
