#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "launch/messages.h"

/// What several kinds of messages are made of, as JSON and back. Reading throws InvalidArgument for
/// everything that writing could not have made.
namespace lockstep::message_parts {

using nlohmann::json;

json to_json(const NodeInfo& node);
NodeInfo node_info(const json& object);

json to_json(const JobTerms& terms);
JobTerms job_terms(const json& object);

json to_json(const WorkerFailed& failed);
WorkerFailed worker_failed(const json& object);

/// Of the field "failures".
json to_json(const std::vector<WorkerFailed>& failures);
std::vector<WorkerFailed> worker_failures(const json& object);

json to_json(const RankRecovers& recovers);
RankRecovers rank_recovers(const json& object);

/// Of the field "recovers".
json to_json(const std::vector<RankRecovers>& recovers);
std::vector<RankRecovers> ranks_that_recover(const json& object);

json to_json(const Membership& membership);
Membership membership_of(const json& object);

/// Of the field "addresses".
json to_json(const std::vector<NodeAddress>& addresses);
std::vector<NodeAddress> node_addresses(const json& object);

/// Of the field "targets".
json to_json(const std::vector<ProbeTarget>& targets);
std::vector<ProbeTarget> probe_targets(const json& object);

/// Of the field "failures" of Probed.
json to_json(const std::vector<ProbeFailure>& failures);
std::vector<ProbeFailure> probe_failures(const json& object);

}  // namespace lockstep::message_parts
