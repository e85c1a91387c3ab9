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
  // Keys take longer to make than to compare.
  using Keyed = std::pair<decltype(rank_order(nodes.front())), std::size_t>;
  std::vector<Keyed> order;
  order.reserve(nodes.size());
  for (const NodeInfo& node : nodes) order.emplace_back(rank_order(node), order.size());
  std::ranges::sort(order);
  std::vector<NodeInfo> sorted;
  sorted.reserve(nodes.size());
  for (const Keyed& each : order) sorted.push_back(std::move(nodes[each.second]));
  nodes = std::move(sorted);
}

bool Membership::is_in(int place) const {
  return place >= 0 && place < places && !std::ranges::binary_search(left_out, place);
}

int Membership::rank_of(int place) const {
  const auto below = std::ranges::lower_bound(left_out, place) - left_out.begin();
  return place - static_cast<int>(below);
}

std::optional<int> Membership::place_of(int rank) const {
  if (rank < 0 || rank >= world_size()) return std::nullopt;
  // Each place that is left out before it moves it by one.
  int place = rank;
  for (const int missing : left_out) {
    if (missing > place) break;
    ++place;
  }
  return place;
}

int Membership::local_workers(std::optional<int> below) const {
  return rank_of(self.first_rank + below.value_or(self.workers)) - rank_of(self.first_rank);
}

std::vector<Membership> form_memberships(const std::vector<NodeInfo>& nodes, Epoch epoch,
                                         int restart_count, const std::vector<int>& left_out) {
  std::vector<NodePlace> places;
  std::vector<int> role_ranks;
  std::map<std::string, int> role_sizes;
  int count = 0;
  for (const NodeInfo& node : nodes) {
    places.push_back({.host = node.host,
                      .address = node.address,
                      .seen_at = node.seen_at,
                      .workers = node.workers,
                      .first_rank = count});
    const auto begin = std::ranges::lower_bound(left_out, count);
    const auto missing = std::ranges::lower_bound(left_out, count + node.workers) - begin;
    count += node.workers;
    int& role_size = role_sizes[node.role];
    role_ranks.push_back(role_size);
    role_size += node.workers - static_cast<int>(missing);
  }
  std::vector<Membership> memberships;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    memberships.push_back({.epoch = epoch,
                           .restart_count = restart_count,
                           .group_rank = static_cast<int>(i),
                           .group_world_size = static_cast<int>(nodes.size()),
                           .places = count,
                           .first_role_rank = role_ranks[i],
                           .role_world_size = role_sizes[nodes[i].role],
                           .self = places[i],
                           .left_out = left_out});
  }
  if (!memberships.empty()) memberships.front().nodes = std::move(places);
  return memberships;
}

}  // namespace lockstep
