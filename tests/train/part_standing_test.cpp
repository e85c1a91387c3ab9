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

PartPlaces copied(int ranks) {
  return {.ranks = ranks, .peer_copies = true};
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

TEST(PartStanding, a_copy_is_on_the_rank_before) {
  for (const int ranks : {2, 3, 4}) {
    for (int part = 0; part < ranks; ++part) {
      EXPECT_EQ(copied(ranks).holders(part), (PartRanks{part, (part + ranks - 1) % ranks}));
      EXPECT_EQ(copied(ranks).part_of(part), part);
    }
  }
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
