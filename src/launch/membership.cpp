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

bool Membership::is_in(int place) const {
  return place >= 0 && place < places && !std::ranges::binary_search(left_out, place);
}

int Membership::rank_of(int place) const {
  const auto below = std::ranges::lower_bound(left_out, place) - left_out.begin();
  return place - static_cast<int>(below);
}

std::optional<int> Membership::place_of(int rank) const {
  for (int place = rank; place < places; ++place) {
    if (is_in(place) && rank_of(place) == rank) return place;
  }
  return std::nullopt;
}

int Membership::local_workers(std::optional<int> below) const {
  const NodePlace& node = self();
  return rank_of(node.first_rank + below.value_or(node.workers)) - rank_of(node.first_rank);
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
    const auto is_here = [&](int place) { return place >= count && place < count + node.workers; };
    const auto missing = std::ranges::count_if(left_out, is_here);
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
                           .places = count,
                           .first_role_rank = role_ranks[i],
                           .role_world_size = role_sizes[nodes[i].role],
                           .nodes = places,
                           .left_out = left_out});
  }
  return memberships;
}

}  // namespace lockstep
