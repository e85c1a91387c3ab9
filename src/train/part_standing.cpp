#include "train/part_standing.h"

#include <string>

#include "core/rank_list.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<int> holders_of(int rank, int ranks, int replicas) {
  const int parts = ranks / replicas;
  std::vector<int> holders;
  for (int holder = rank % parts; holder < ranks; holder += parts) holders.push_back(holder);
  return holders;
}

}  // namespace

Standing PartStanding::of_holders(int rank, int replicas) const {
  Standing standing;
  const auto ranks = static_cast<int>(takes.size());
  int copy = 0;
  for (const int holder : holders_of(rank, ranks, replicas)) {
    (takes[holder] ? standing.takers : standing.givers).push_back(copy++);
  }
  standing.source = standing.givers.front();
  return standing;
}

PartStanding stand_in_parts(const std::vector<PartHolding>& all, int replicas) {
  const auto ranks = static_cast<int>(all.size());
  PartStanding standing;
  for (int rank = 0; rank < ranks; ++rank) {
    const int source = standing.values.source;
    if (!all[rank].has_state) continue;
    if (source < 0 || all[rank].commits > all[source].commits) standing.values.source = rank;
  }
  if (standing.values.source < 0) throw Error("no rank has the state of the run any more");
  const PartHolding& furthest = all[standing.values.source];
  for (int rank = 0; rank < ranks; ++rank) {
    const PartHolding& each = all[rank];
    const bool level = each.has_state && each.commits == furthest.commits;
    (level ? standing.values.givers : standing.values.takers).push_back(rank);
    const bool behind = each.has_state && each.updates + 1 == furthest.updates;
    standing.applies.push_back(behind && each.prepared);
    const bool current = each.has_state && each.updates == furthest.updates;
    standing.takes.push_back(!current && !standing.applies.back());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int> holders = holders_of(rank, ranks, replicas);
    int giver = -1;
    for (const int holder : holders) {
      if (giver < 0 && !standing.takes[holder]) giver = holder;
    }
    if (giver < 0) {
      throw Error(concat("the part of the model that ", list_ranks(holders),
                         " held is lost with them; the run can only go on from its newest "
                         "snapshot, as often as --max-restarts allows"));
    }
    standing.like.push_back(giver);
  }
  return standing;
}

PartStanding compare_parts(ProcessGroup& group, const PartHolding& mine, int replicas) {
  std::vector<PartHolding> all;
  for (const nlohmann::json& each :
       group.all_gather_json({mine.has_state, mine.commits, mine.updates, mine.prepared})) {
    all.push_back({.has_state = each.at(0),
                   .commits = each.at(1),
                   .updates = each.at(2),
                   .prepared = each.at(3)});
  }
  return stand_in_parts(all, replicas);
}

}  // namespace lockstep
