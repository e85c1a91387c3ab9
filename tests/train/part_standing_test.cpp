#include "train/part_standing.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using namespace lockstep;

namespace {

PartHolding holds(std::int64_t commits, std::int64_t updates, bool prepared = false) {
  return {.has_state = true, .commits = commits, .updates = updates, .prepared = prepared};
}

using PartFlags = std::vector<bool>;
using PartRanks = std::vector<int>;

// Ranks 0 and 2 hold one part, 1 and 3 the other.
constexpr PartPlaces kTwoCopies{.ranks = 4, .replicas = 2};

PartPlaces copied(int ranks, int distance = 1) {
  return {.ranks = ranks, .copy_distance = distance};
}

std::string loss_of_part(const std::vector<PartHolding>& all, const PartPlaces& places) {
  try {
    stand_in_parts(all, places);
  } catch (const Error& error) {
    return error.what();
  }
  return "it goes on";
}

}  // namespace

TEST(PartStanding, a_new_process_takes_its_part_from_the_other_holder) {
  const auto standing = stand_in_parts({holds(5, 5), holds(5, 5), holds(5, 5), {}}, kTwoCopies);
  EXPECT_EQ(standing.values.source, 0);
  EXPECT_EQ(standing.values.takers, PartRanks{3});
  EXPECT_EQ(standing.takes, (PartFlags{false, false, false, true}));
  EXPECT_EQ(standing.applies, (PartFlags(4, false)));
  ASSERT_EQ(standing.parts.size(), 2u);
  EXPECT_EQ(standing.parts[0].source, 0);
  EXPECT_EQ(standing.parts[0].givers, (PartRanks{0, 2}));
  EXPECT_TRUE(standing.parts[0].takers.empty());
  EXPECT_EQ(standing.parts[1].source, 1);
  EXPECT_EQ(standing.parts[1].takers, PartRanks{3});
}

TEST(PartStanding, those_behind_make_the_update_for_which_they_are_prepared) {
  // An epoch has ended since: two commits, one update.
  const auto standing =
      stand_in_parts({holds(7, 6), holds(5, 5, true), {}, holds(5, 5, true)}, kTwoCopies);
  EXPECT_EQ(standing.values.source, 0);
  EXPECT_EQ(standing.values.takers, (PartRanks{1, 2, 3}));
  EXPECT_EQ(standing.applies, (PartFlags{false, true, false, true}));
  EXPECT_EQ(standing.takes, (PartFlags{false, false, true, false}));
}

TEST(PartStanding, nobody_makes_an_update_that_nobody_has_made) {
  const auto standing =
      stand_in_parts({holds(5, 5, true), holds(5, 5, true), holds(5, 5, true), {}}, kTwoCopies);
  EXPECT_EQ(standing.applies, PartFlags(4, false));
}

TEST(PartStanding, a_commit_without_an_update_changes_values_alone) {
  const auto standing = stand_in_parts({holds(5, 5), holds(6, 5), holds(5, 5), {}}, kTwoCopies);
  EXPECT_EQ(standing.values.source, 1);
  EXPECT_EQ(standing.values.takers, (PartRanks{0, 2, 3}));
  EXPECT_EQ(standing.takes, (PartFlags{false, false, false, true}));
}

TEST(PartStanding, a_part_that_all_holders_have_lost_is_named_by_them) {
  const std::string said = loss_of_part({holds(5, 5), {}, holds(5, 5), {}}, kTwoCopies);
  EXPECT_NE(said.find("that ranks 1, 3 held is lost"), std::string::npos) << said;
  EXPECT_THROW(stand_in_parts({{}, {}}, {.ranks = 2, .replicas = 2}), Error);
}

TEST(PartStanding, the_owner_of_a_part_and_who_keeps_its_copy_hold_it) {
  EXPECT_EQ(copied(3).holders(0), (PartRanks{0, 2}));
  EXPECT_EQ(copied(3).holders(2), (PartRanks{2, 1}));
  EXPECT_EQ(copied(6, 2).holders(1), (PartRanks{1, 5}));
  EXPECT_EQ(copied(6, 2).part_of(5), 5);
  EXPECT_EQ(copied(6, 2).held_as(5, 5), ShardPart::own);
  EXPECT_EQ(copied(6, 2).held_as(5, 1), ShardPart::copied);
  EXPECT_EQ(kTwoCopies.held_as(3, 1), ShardPart::own);
}

TEST(PartStanding, all_ranks_of_a_machine_can_die_where_copies_are_on_others) {
  for (const auto& [machines, each] : {std::pair(2, 2), std::pair(3, 4), std::pair(2, 1)}) {
    const int ranks = machines * each;
    for (int lost = 0; lost < machines; ++lost) {
      std::vector<PartHolding> all(ranks, holds(5, 5));
      for (int place = 0; place < each; ++place) all[lost * each + place] = {};
      const auto standing = stand_in_parts(all, copied(ranks, each));
      for (int part = 0; part < ranks; ++part) {
        const bool died = part / each == lost;
        EXPECT_EQ(standing.parts[part].source, died ? (part + ranks - each) % ranks : part);
        EXPECT_EQ(standing.parts[part].takes(part), died);
      }
      if (each == 1) continue;
      EXPECT_NE(loss_of_part(all, copied(ranks)).find("is lost"), std::string::npos);
    }
  }
}

TEST(PartStanding, transfers_that_share_no_rank_come_first) {
  const auto order = [](int ranks, int distance) {
    std::vector<Standing> all;
    for (int part = 0; part < ranks; ++part) {
      all.push_back({.source = part,
                     .givers = {part},
                     .takers = {copied(ranks, distance).copies().keeper_of(part)}});
    }
    return order_of_transfers(all);
  };
  EXPECT_EQ(order(4, 1), (PartRanks{0, 2, 1, 3}));
  EXPECT_EQ(order(3, 1), (PartRanks{0, 1, 2}));
  EXPECT_EQ(order(8, 2), (PartRanks{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(order_of_transfers({{.source = 0, .givers = {0}, .takers = {}},
                                {.source = 1, .givers = {1}, .takers = {0}}}),
            PartRanks{1});
}

TEST(PartStanding, each_rank_but_neighbours_can_die_where_parts_are_copied) {
  for (const int ranks : {2, 3, 4, 5}) {
    for (int deaths = 1; deaths < (1 << ranks) - 1; ++deaths) {
      const auto died = [&](int rank) { return (deaths >> (rank % ranks) & 1) != 0; };
      std::vector<PartHolding> all;
      bool neighbours = false;
      for (int rank = 0; rank < ranks; ++rank) {
        all.push_back(died(rank) ? PartHolding{} : holds(5, 5));
        neighbours = neighbours || (died(rank) && died(rank + 1));
      }
      const std::string what = concat(ranks, " ranks, those of ", deaths, " died");
      if (neighbours) {
        EXPECT_NE(loss_of_part(all, copied(ranks)).find("is lost"), std::string::npos) << what;
        continue;
      }
      const auto standing = stand_in_parts(all, copied(ranks));
      for (int part = 0; part < ranks; ++part) {
        const int before = (part + ranks - 1) % ranks;
        const Standing& holders = standing.parts[part];
        EXPECT_EQ(holders.source, died(part) ? before : part) << what;
        EXPECT_EQ(holders.takes(part), died(part)) << what;
        EXPECT_EQ(holders.takes(before), died(before)) << what;
      }
    }
  }
}

TEST(PartStanding, a_copy_behind_is_brought_forward_and_given) {
  // Rank 2 has made the update, and rank 0, which has the copy of the lost part, has not.
  const auto standing = stand_in_parts({holds(5, 5, true), {}, holds(6, 6)}, copied(3));
  EXPECT_EQ(standing.applies, (PartFlags{true, false, false}));
  EXPECT_EQ(standing.takes, (PartFlags{false, true, false}));
  EXPECT_EQ(standing.parts[1].source, 0);
  EXPECT_EQ(standing.parts[2].source, 2);
  EXPECT_EQ(standing.parts[2].takers, PartRanks{1});
}

TEST(PartStanding, neighbours_that_are_lost_together_are_named) {
  const std::string said = loss_of_part({holds(5, 5), {}, {}, holds(5, 5)}, copied(4));
  EXPECT_NE(said.find("that ranks 1, 2 held is lost"), std::string::npos) << said;
  const std::string around = loss_of_part({{}, holds(5, 5), {}}, copied(3));
  EXPECT_NE(around.find("that ranks 0, 2 held is lost"), std::string::npos) << around;
}
