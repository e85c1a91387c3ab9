// What the coordinator says about who is here and who is missing.
#include <algorithm>
#include <set>

#include "launch/coordinator.h"
#include "launch/membership.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Schedulers and machines differ in whether a name has its domain.
std::string short_name(const std::string& host) {
  return host.substr(0, host.find('.'));
}

// What every node prints every five seconds, in a job of any size.
constexpr std::size_t kMostNamed = 16;

std::string join_list(const std::vector<std::string>& items) {
  std::string all;
  for (std::size_t i = 0; i < std::min(items.size(), kMostNamed); ++i) {
    all += concat(i == 0 ? "" : ", ", items[i]);
  }
  if (items.size() > kMostNamed) all += concat(" and ", items.size() - kMostNamed, " more");
  return all;
}

}  // namespace

std::string Coordinator::status(Time now) const {
  std::vector<NodeInfo> here;
  std::vector<std::string> busy;
  visit(2 * nodes_.size());
  for (const auto& [id, node] : nodes_) {
    if (!node.link) continue;
    here.push_back(node.info);
    if (node.busy != 0) busy.push_back(node.info.host);
  }
  sort_by_rank_order(here);
  std::vector<std::string> names;
  for (const NodeInfo& node : here) names.push_back(concat(node.host, " (", node.address, ")"));

  const JobTerms& terms = options_.terms;
  std::string text = concat(here.size(), " of ", terms.min_nodes,
                            terms.elastic() ? concat(" to ", terms.max_nodes) : "",
                            terms.max_nodes == 1 ? " node" : " nodes", " joined",
                            names.empty() ? "" : ": ", join_list(names));
  text += describe_missing(here.size());
  if (surveys()) text += "; looking at the network between them";
  if (!busy.empty()) text += concat("; still stopping workers: ", join_list(busy));
  text += concat("; waiting for ", whole_seconds(now - gathering_since_), " s");
  if (surveys()) return text;
  if (last_call_) {
    text += concat(", last call ends in ",
                   std::max<std::int64_t>(0, whole_seconds(*last_call_ - now)), " s");
  } else {
    text += concat(
        ", giving up in ",
        std::max<std::int64_t>(0, whole_seconds(gathering_since_ + options_.join_timeout - now)),
        " s");
  }
  return text;
}

// Where a scheduler has named the machines: those that have not come.
std::vector<std::string> Coordinator::expected_and_absent() const {
  std::set<std::string> hosts;
  for (const auto& [id, node] : nodes_) {
    if (node.link) hosts.insert(short_name(node.info.host));
  }
  std::vector<std::string> names;
  for (const std::string& host : options_.expected_hosts) {
    if (!hosts.contains(short_name(host))) names.push_back(host);
  }
  return names;
}

// The command stands in a batch script, which runs on the first machine only.
void Coordinator::end_if_alone() {
  if (highest_epoch_ != 0 || nodes_.size() != 1 || !departures_.empty()) return;
  if (options_.terms.min_nodes < 2 || options_.start_timeout == Time(0)) return;
  if (now_ - gathering_since_ < options_.start_timeout) return;
  const std::vector<std::string> absent = expected_and_absent();
  if (absent.empty()) return;
  const NodeInfo& node = nodes_.begin()->second.info;
  finish(1, concat("lockstep run was started on ", node.host,
                   " only: nobody else of this allocation has come to ", node.address, " within ",
                   whole_seconds(now_ - gathering_since_), " s (", join_list(absent),
                   "); the command must run on every node: ", options_.cure_if_alone,
                   "; to wait longer give --start-timeout SECONDS"));
}

// Names where names are known: by a scheduler, by node ranks, or because they were here before.
std::string Coordinator::describe_missing(std::size_t present) const {
  if (present >= static_cast<std::size_t>(options_.terms.min_nodes)) return "";
  const std::size_t count = static_cast<std::size_t>(options_.terms.min_nodes) - present;
  std::set<std::string> hosts;
  std::set<int> ranks;
  for (const auto& [id, node] : nodes_) {
    if (!node.link) continue;
    hosts.insert(short_name(node.info.host));
    if (node.info.node_rank) ranks.insert(*node.info.node_rank);
  }
  std::vector<std::string> names = expected_and_absent();
  if (names.size() > count) names.clear();  // they are called otherwise here
  if (names.empty() && !ranks.empty() && ranks.size() == present) {
    for (int rank = 0; rank < options_.terms.max_nodes; ++rank) {
      if (!ranks.contains(rank)) names.push_back(concat("node rank ", rank));
    }
  }
  if (names.empty()) {
    std::vector<std::pair<Time, std::string>> gone;
    for (const auto& [host, departure] : departures_) {
      if (!hosts.contains(short_name(host))) gone.emplace_back(departure.when, host);
    }
    std::ranges::sort(gone);
    for (const auto& [when, host] : gone) {
      names.push_back(concat(host, " (lost ", whole_seconds(now_ - when),
                             " s ago: ", departures_.at(host).reason, ")"));
    }
  }
  return concat("; ", count, " missing", names.empty() ? "" : ": ", join_list(names));
}

}  // namespace lockstep
