#include "doctor/pair_schedule.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

namespace lockstep {
namespace {

TEST(PairSchedule, every_node_meets_every_other_once_and_only_one_at_a_time) {
  for (int nodes = 0; nodes <= 17; ++nodes) {
    std::set<std::pair<int, int>> met;
    for (const PairRound& round : schedule_pairs(nodes, 0)) {
      std::set<int> busy;
      for (const auto& [one, other] : round) {
        EXPECT_LT(one, other);
        EXPECT_GE(one, 0);
        EXPECT_LT(other, nodes);
        EXPECT_TRUE(busy.insert(one).second && busy.insert(other).second) << nodes;
        EXPECT_TRUE(met.insert({one, other}).second) << nodes;
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(nodes * (nodes - 1) / 2));
  }
}

TEST(PairSchedule, many_nodes_meet_as_many_others_as_few_do) {
  const auto rounds = schedule_pairs(1000, 8);
  EXPECT_EQ(rounds.size(), 8u);
  std::map<int, std::set<int>> met;
  for (const PairRound& round : rounds) {
    for (const auto& [one, other] : round) {
      met[one].insert(other);
      met[other].insert(one);
    }
  }
  EXPECT_EQ(met.size(), 1000u);
  for (const auto& [node, others] : met) EXPECT_EQ(others.size(), 8u) << node;
  EXPECT_EQ(schedule_pairs(5, 8).size(), 5u);
}

}  // namespace
}  // namespace lockstep
