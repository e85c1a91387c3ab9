// A node that is lost while the others go on, and one that takes its place. A seat is a node's
// place among the nodes: its group rank, with the workers' places that belong to it.
#include <algorithm>

#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {

std::vector<int> Coordinator::places_of_seat(int seat) const {
  const auto at = static_cast<std::size_t>(seat);
  std::vector<int> places;
  for (int i = 0; i < seats_[at].workers; ++i) places.push_back(first_places_[at] + i);
  return places;
}

int Coordinator::seat_of(int place) const {
  return static_cast<int>(std::ranges::upper_bound(first_places_, place) - first_places_.begin()) -
         1;
}

// The store is on the first node; a job without it begins again.
bool Coordinator::go_on_without(const Node& node, const Ending& ending) {
  const bool at_work = phase_ == Phase::running || is_reforming();
  const int seat = node.membership.group_rank;
  if (options_.terms.min_world == 0 || !at_work || seat == 0) return false;
  if (with_state_.empty() && !carries_over_) return false;
  std::vector<int> lost;
  for (const int place : places_of_seat(seat)) {
    if (!left_out_.contains(place)) lost.push_back(place);
  }
  absent_.insert(seat);
  participants_[static_cast<std::size_t>(seat)].clear();  // it may come back to another seat
  if (!lost.empty()) return replace_in_place(ending, lost, now_);
  actions_.push_back(Say{ending.reason});  // it had no workers
  start_if_all_are_ready();
  return true;
}

// A free node for each seat that is empty: the same machine, or one like it.
std::map<int, std::string> Coordinator::nodes_for_empty_seats() const {
  std::map<int, std::string> found;
  std::vector<NodeInfo> free = candidates();
  visit(absent_.size());
  for (const int seat : absent_) {
    if (free.empty()) break;
    const NodeInfo& before = seats_[static_cast<std::size_t>(seat)];
    const auto fits = [&](const NodeInfo& node) {
      return node.workers == before.workers && node.role == before.role &&
             (!node.node_rank || node.node_rank == before.node_rank);
    };
    std::erase_if(free, [&](const NodeInfo& node) { return node.workers < 1; });
    auto chosen = std::ranges::find_if(
        free, [&](const NodeInfo& node) { return fits(node) && node.address == before.address; });
    if (chosen == free.end()) chosen = std::ranges::find_if(free, fits);
    if (chosen == free.end()) continue;
    found.emplace(seat, chosen->id);
    free.erase(chosen);
  }
  return found;
}

// Which places are to be filled again, as far as replacements go, by this time.
std::set<int> Coordinator::places_to_fill(Time time) const {
  const auto nodes = nodes_for_empty_seats();
  const int most = options_.terms.max_replacements - replacements_;
  std::set<int> places;
  for (const auto& [place, when] : left_out_) {
    if (when <= time && !absent_.contains(seat_of(place)) && std::cmp_less(places.size(), most)) {
      places.insert(place);
    }
  }
  // A node that comes gets all of its workers, or waits.
  for (const auto& [seat, id] : nodes) {
    const std::vector<int> its_places = places_of_seat(seat);
    const bool is_due =
        std::ranges::all_of(its_places, [&](int place) { return left_out_.at(place) <= time; });
    if (is_due && std::cmp_less_equal(places.size() + its_places.size(), most)) {
      places.insert(its_places.begin(), its_places.end());
    }
  }
  return places;
}

void Coordinator::seat_nodes_of(const std::set<int>& places) {
  for (const auto& [seat, id] : nodes_for_empty_seats()) {
    if (!places.contains(places_of_seat(seat).front())) continue;
    Node& node = nodes_.at(id);
    seats_[static_cast<std::size_t>(seat)] = node.info;
    participants_[static_cast<std::size_t>(seat)] = id;
    absent_.erase(seat);
    change(node, [&] {
      node.participant = true;
      node.succeeded = false;
    });
  }
}

}  // namespace lockstep
