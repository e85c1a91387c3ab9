#include "launch/membership.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace lockstep {
namespace {

// Digits count as numbers: 10.0.0.9 comes before 10.0.0.10, and node9 before node10.
std::vector<std::tuple<std::uint64_t, std::string>> natural_key(const std::string& text) {
  std::vector<std::tuple<std::uint64_t, std::string>> key;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t number = 0;
    std::string rest;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
      number = number * 10 + static_cast<std::uint64_t>(text[at++] - '0');
    }
    while (at < text.size() && (text[at] < '0' || text[at] > '9')) rest += text[at++];
    key.emplace_back(number, std::move(rest));
  }
  return key;
}

auto rank_order(const NodeInfo& node) {
  return std::tuple(node.node_rank.value_or(std::numeric_limits<int>::max()),
                    natural_key(node.address), natural_key(node.host), node.id);
}

}  // namespace

void sort_by_rank_order(std::vector<NodeInfo>& nodes) {
  std::ranges::sort(nodes, {}, rank_order);
}

std::vector<Membership> form_memberships(const std::vector<NodeInfo>& nodes, Epoch epoch,
                                         int restart_count) {
  std::vector<NodePlace> places;
  std::vector<int> role_ranks;
  std::map<std::string, int> role_sizes;
  int world_size = 0;
  for (const NodeInfo& node : nodes) {
    places.push_back({.host = node.host,
                      .address = node.address,
                      .seen_at = node.seen_at,
                      .workers = node.workers,
                      .first_rank = world_size});
    world_size += node.workers;
    int& role_size = role_sizes[node.role];
    role_ranks.push_back(role_size);
    role_size += node.workers;
  }
  std::vector<Membership> memberships;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    memberships.push_back({.epoch = epoch,
                           .restart_count = restart_count,
                           .group_rank = static_cast<int>(i),
                           .world_size = world_size,
                           .first_role_rank = role_ranks[i],
                           .role_world_size = role_sizes[nodes[i].role],
                           .nodes = places});
  }
  return memberships;
}

}  // namespace lockstep
