#include "launch/stack_report.h"

#include <algorithm>
#include <ostream>
#include <set>
#include <utility>

#include "core/rank_list.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxText = std::size_t{64} << 10;  // of one rank
constexpr std::size_t kMaxTexts = std::size_t{2} << 20;  // of one node, less than half a message
constexpr std::size_t kMaxHost = 4096;

struct Member {
  const NodeStacks* node;
  const RankStack* rank;
};

// "rank 3 (process 4711)", "ranks 0-2, 5 (processes 4711, 4712, 4713, 4720)", and on several nodes
// "rank 3 (process 4711 on b)".
std::string title_of(const std::vector<Member>& members, bool several_nodes) {
  std::vector<int> ranks;
  std::string pids;
  for (const Member& member : members) {
    ranks.push_back(member.rank->rank);
    pids += concat(pids.empty() ? "" : ", ", member.rank->pid);
    if (several_nodes) pids += concat(" on ", member.node->host);
  }
  return concat(list_ranks(ranks), members.size() == 1 ? " (process " : " (processes ", pids, ")");
}

}  // namespace

std::string to_json(const NodeStacks& stacks) {
  Json ranks = Json::array();
  std::size_t left = kMaxTexts;
  for (const RankStack& rank : stacks.ranks) {
    const std::string text = clipped(rank.text, std::min(kMaxText, left));
    left -= std::min(left, text.size());
    ranks.push_back(
        {{"rank", rank.rank}, {"pid", rank.pid}, {"text", text}, {"complete", rank.complete}});
  }
  return dump_json({{"host", stacks.host}, {"ranks", ranks}, {"advice", stacks.advice}});
}

std::optional<NodeStacks> node_stacks_from_json(std::string_view text) {
  const auto json = parse_json(text);
  if (!json) return std::nullopt;
  const auto host = string_field(*json, "host", kMaxHost);
  const Json *ranks = field(*json, "ranks"), *advice = field(*json, "advice");
  if (!host || ranks == nullptr || !ranks->is_array() || advice == nullptr || !advice->is_array()) {
    return std::nullopt;
  }
  NodeStacks stacks{.host = *host, .ranks = {}, .advice = {}};
  for (const Json& each : *ranks) {
    const auto rank = integer_field(each, "rank"), pid = integer_field(each, "pid");
    const auto words = string_field(each, "text", kMaxTexts);
    const Json* complete = field(each, "complete");
    if (!rank || !pid || !words || complete == nullptr || !complete->is_boolean()) {
      return std::nullopt;
    }
    stacks.ranks.push_back({.rank = static_cast<int>(*rank),
                            .pid = static_cast<pid_t>(*pid),
                            .text = *words,
                            .complete = complete->get<bool>()});
  }
  for (const Json& line : *advice) {
    if (line.is_string()) stacks.advice.push_back(clipped(line.get<std::string>(), kMaxHost));
  }
  return stacks;
}

void print_stacks(const std::vector<NodeStacks>& nodes, std::ostream& out) {
  std::vector<Member> all;
  std::set<std::string> advice;
  for (const NodeStacks& node : nodes) {
    for (const RankStack& rank : node.ranks) all.push_back({&node, &rank});
    advice.insert(node.advice.begin(), node.advice.end());
  }
  std::ranges::stable_sort(all, {}, [](const Member& member) { return member.rank->rank; });
  std::vector<std::pair<std::string_view, std::vector<Member>>> groups;
  for (const Member& member : all) {
    const std::string_view text = member.rank->text;
    auto group = std::ranges::find(groups, text, [](const auto& each) { return each.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(member);
  }
  for (const auto& [text, members] : groups) {
    out << title_of(members, nodes.size() > 1) << ":\n" << text;
  }
  for (const std::string& line : advice) out << line << "\n";
}

}  // namespace lockstep
