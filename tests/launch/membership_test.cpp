#include "launch/membership.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

NodeInfo node(const std::string& id, const std::string& address,
              std::optional<int> rank = std::nullopt, int workers = 1,
              const std::string& role = "default") {
  return {.id = id,
          .host = "host" + id,
          .address = address,
          .node_rank = rank,
          .workers = workers,
          .role = role,
          .pid = 1};
}

std::string order_of(std::vector<NodeInfo> nodes) {
  sort_by_rank_order(nodes);
  std::string ids;
  for (const NodeInfo& each : nodes) ids += each.id;
  return ids;
}

TEST(Membership, NodesAreOrderedByTheRankTheyWereGiven) {
  EXPECT_EQ(
      order_of({node("x", "10.0.0.1", 2), node("y", "10.0.0.2", 0), node("z", "10.0.0.3", 1)}),
      "yzx");
}

TEST(Membership, WithoutGivenRanksNodesAreOrderedByAddressAndNumbersCountAsNumbers) {
  EXPECT_EQ(order_of({node("x", "10.0.0.10"), node("y", "10.0.0.9"), node("z", "9.9.9.9")}), "zyx");
}

TEST(Membership, NodesWithAGivenRankComeFirst) {
  EXPECT_EQ(order_of({node("x", "10.0.0.1"), node("y", "10.0.0.2", 5)}), "yx");
}

TEST(Membership, OrderDoesNotDependOnWhoCameFirst) {
  const auto one = node("x", "10.0.0.1"), other = node("y", "10.0.0.1");
  EXPECT_EQ(order_of({one, other}), order_of({other, one}));
}

TEST(Membership, RanksAreContiguousOverNodesOfDifferentSize) {
  const auto places =
      form_memberships({node("x", "1", {}, 4), node("y", "2", {}, 2), node("z", "3", {}, 1)}, 7, 3);
  ASSERT_EQ(places.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const Membership& place = places[static_cast<std::size_t>(i)];
    EXPECT_EQ(place.epoch, 7u);
    EXPECT_EQ(place.restart_count, 3);
    EXPECT_EQ(place.group_rank, i);
    EXPECT_EQ(place.places, 7);
    EXPECT_EQ(place.group_world_size, 3);
    // Only the first needs to know of all.
    ASSERT_EQ(place.nodes.size(), i == 0 ? 3u : 0u);
    EXPECT_EQ(place.self, places[0].nodes[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(places[0].self.first_rank, 0);
  EXPECT_EQ(places[1].self.first_rank, 4);
  EXPECT_EQ(places[2].self.first_rank, 6);
}

TEST(Membership, those_who_are_in_number_themselves_without_gaps) {
  const auto places = form_memberships(
      {node("x", "1", {}, 3), node("y", "2", {}, 2, "reader"), node("z", "3", {}, 2)}, 7, 0,
      {1, 3, 4, 5});
  for (const Membership& place : places) {
    EXPECT_EQ(place.places, 7);
    EXPECT_EQ(place.world_size(), 3);
    EXPECT_EQ(place.left_out, (std::vector{1, 3, 4, 5}));
    for (const int in : {0, 2, 6}) {
      EXPECT_TRUE(place.is_in(in)) << in;
      EXPECT_EQ(place.place_of(place.rank_of(in)), in);
    }
    EXPECT_EQ(place.rank_of(6), 2);
    EXPECT_EQ(place.place_of(3), std::nullopt);
    for (const int out : {-1, 1, 3, 4, 5, 7}) EXPECT_FALSE(place.is_in(out)) << out;
  }
  EXPECT_EQ(places[0].local_workers(), 2);
  EXPECT_EQ(places[0].local_workers(/*below=*/2), 1);
  EXPECT_EQ(places[1].local_workers(), 0);
  EXPECT_EQ(places[2].local_workers(), 1);
  // Nodes x and z have one role, with ranks 0, 1 and 2.
  EXPECT_EQ(places[2].first_role_rank, 2);
  EXPECT_EQ(places[2].role_world_size, 3);
  EXPECT_EQ(places[1].role_world_size, 0);
}

TEST(Membership, RanksWithinARoleAreCountedByRole) {
  const auto places =
      form_memberships({node("x", "1", {}, 2, "trainer"), node("y", "2", {}, 3, "reader"),
                        node("z", "3", {}, 1, "trainer")},
                       1, 0);
  EXPECT_EQ(places[0].first_role_rank, 0);
  EXPECT_EQ(places[0].role_world_size, 3);
  EXPECT_EQ(places[1].first_role_rank, 0);
  EXPECT_EQ(places[1].role_world_size, 3);
  EXPECT_EQ(places[2].first_role_rank, 2);
  EXPECT_EQ(places[2].role_world_size, 3);
}

}  // namespace
}  // namespace lockstep
