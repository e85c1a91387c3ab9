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

}  // namespace

// PartRanks 0 and 2 hold one part, 1 and 3 the other.
TEST(PartStanding, a_new_process_takes_its_part_from_the_other_holder) {
  const auto standing = stand_in_parts({holds(5, 5), holds(5, 5), holds(5, 5), {}}, 2);
  EXPECT_EQ(standing.values.source, 0);
  EXPECT_EQ(standing.values.takers, PartRanks{3});
  EXPECT_EQ(standing.takes, (PartFlags{false, false, false, true}));
  EXPECT_EQ(standing.applies, (PartFlags(4, false)));
  EXPECT_EQ(standing.like, (PartRanks{0, 1, 0, 1}));
  EXPECT_EQ(standing.of_holders(3, 2).source, 0);
  EXPECT_EQ(standing.of_holders(3, 2).takers, PartRanks{1});
  EXPECT_TRUE(standing.of_holders(0, 2).takers.empty());
}

TEST(PartStanding, those_behind_make_the_update_for_which_they_are_prepared) {
  // An epoch has ended since: two commits, one update.
  const auto standing = stand_in_parts({holds(7, 6), holds(5, 5, true), {}, holds(5, 5, true)}, 2);
  EXPECT_EQ(standing.values.source, 0);
  EXPECT_EQ(standing.values.takers, (PartRanks{1, 2, 3}));
  EXPECT_EQ(standing.applies, (PartFlags{false, true, false, true}));
  EXPECT_EQ(standing.takes, (PartFlags{false, false, true, false}));
}

TEST(PartStanding, nobody_makes_an_update_that_nobody_has_made) {
  const auto standing =
      stand_in_parts({holds(5, 5, true), holds(5, 5, true), holds(5, 5, true), {}}, 2);
  EXPECT_EQ(standing.applies, PartFlags(4, false));
}

TEST(PartStanding, a_commit_without_an_update_changes_values_alone) {
  const auto standing = stand_in_parts({holds(5, 5), holds(6, 5), holds(5, 5), {}}, 2);
  EXPECT_EQ(standing.values.source, 1);
  EXPECT_EQ(standing.values.takers, (PartRanks{0, 2, 3}));
  EXPECT_EQ(standing.takes, (PartFlags{false, false, false, true}));
}

TEST(PartStanding, a_part_that_all_holders_have_lost_is_named_by_them) {
  try {
    stand_in_parts({holds(5, 5), {}, holds(5, 5), {}}, 2);
    ADD_FAILURE() << "it goes on";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("that ranks 1, 3 held is lost"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(stand_in_parts({{}, {}}, 2), Error);
}
