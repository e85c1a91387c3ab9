#include "train/part_standing.h"

#include <algorithm>

#include "core/rank_list.h"
#include "lockstep/error.h"

namespace lockstep {

std::vector<int> PartPlaces::holders(int part) const {
  std::vector<int> holders;
  for (int holder = part; holder < ranks; holder += parts()) holders.push_back(holder);
  if (has_copies()) holders.push_back(copies().keeper_of(part));
  return holders;
}

PartStanding stand_in_parts(const std::vector<PartHolding>& all, const PartPlaces& places) {
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
  for (int part = 0; part < places.parts(); ++part) {
    Standing& holders = standing.parts.emplace_back();
    for (const int holder : places.holders(part)) {
      (standing.takes[holder] ? holders.takers : holders.givers).push_back(holder);
    }
    if (holders.givers.empty()) {
      std::ranges::sort(holders.takers);
      throw Error(concat("the part of the model that ", list_ranks(holders.takers),
                         " held is lost with them; the run can only go on from its newest "
                         "snapshot, as often as --max-restarts allows"));
    }
    holders.source = holders.givers.front();
  }
  return standing;
}

PartStanding compare_parts(ProcessGroup& group, const PartHolding& mine, const PartPlaces& places) {
  std::vector<PartHolding> all;
  for (const nlohmann::json& each :
       group.all_gather_json({mine.has_state, mine.commits, mine.updates, mine.prepared})) {
    all.push_back({.has_state = each.at(0),
                   .commits = each.at(1),
                   .updates = each.at(2),
                   .prepared = each.at(3)});
  }
  return stand_in_parts(all, places);
}

}  // namespace lockstep
